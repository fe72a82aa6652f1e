"""Which files a configuration's secrets come from."""

from pathlib import Path

import pytest

from gateway.config.config_file import named_files


@pytest.fixture
def named(tmp_path):
    """The files that a configuration with this text names."""

    def read(text: str | bytes) -> list[str]:
        file = tmp_path / "gateway.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return sorted(str(path) for path in named_files(file))

    return read


def test_wherever_they_stand(named):
    text = """
    server: {admin_token: file:/run/admin}
    spaces:
      secret: "file:/run/spaces"
    models:
      - id: m
        replicas:
          - {url: "http://h", api_key: file:/run/one}
          - {url: "http://i", api_key: 'file:relative/two'}
          - [[file:/run/deep]]
    """
    assert named(text) == ["/run/admin", "/run/deep", "/run/one", "/run/spaces", "relative/two"]


def test_only_what_says_so(named):
    assert named("a: profile:/x\nb: /run/file:\nfile:/key: 1\nc: [1, true, null, ' file:/y', File:/z]\n") == []
    assert named("# file:/comment\na: file:/b\n") == ["/b"]


def test_in_a_list_of_replicas(named):
    assert named('- http://h\n- {url: "http://i", api_key: file:/run/one}\n') == ["/run/one"]


def test_through_aliases(named):
    assert named("a: &secret file:/run/one\nb: *secret\nc: [*secret]\n") == ["/run/one"]
    assert named("a: &all {x: file:/x}\nb: {<<: *all, y: file:/y}\n") == ["/x", "/y"]


@pytest.mark.parametrize(
    "text",
    ["a: &self [*self, file:/run/one]", "a: &self {b: *self, c: file:/run/one}", "a: &x [&y [*x, *y], file:/run/one]"],
)
def test_an_alias_that_refers_to_itself_is_followed_once(named, text):
    assert named(text) == ["/run/one"]


@pytest.mark.parametrize("text", ["", "models: [", "\x00", b"\xff\xfe\xff", "a: file:/b\n---\nc: d"])
def test_what_is_no_configuration_names_none(named, text):
    assert named(text) == []


def test_what_cannot_be_read_names_none(tmp_path):
    assert named_files(tmp_path / "missing.yaml") == []
    assert named_files(tmp_path) == []
    assert named_files(Path("/proc/self/mem")) == []
