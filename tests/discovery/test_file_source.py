"""Replicas from a file that changes."""

import os
import subprocess

import pytest

from gateway.core.errors import ConfigInvalid
from gateway.discovery import file_source as listed
from gateway.discovery.file_source import FileSource, read_replicas


@pytest.fixture(autouse=True)
def look_often(monkeypatch):
    monkeypatch.setattr("gateway.discovery.file_source._LOOK_SECONDS", 0.02)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "replicas.yaml"


def names(said):
    return said if isinstance(said, str) else [each.replica.id for each in said]


def is_now(*expected):
    return lambda said: names(said) == list(expected)


async def test_a_list_as_in_the_configuration(file, listen_to, tmp_path, monkeypatch):
    (tmp_path / "key").write_text("sk-1\n")
    monkeypatch.setenv("HOST", "vllm-1")
    file.write_text(
        f"- http://vllm-0:8000\n- {{url: 'http://${{HOST}}:8000', id: one, api_key: file:{tmp_path}/key, region: eu}}\n"
    )
    received = listen_to(FileSource(file))
    first, second = await received.until(lambda said: True)
    assert (first.replica.id, first.replica.url) == ("vllm-0:8000", "http://vllm-0:8000")
    assert (second.replica.id, second.replica.url, second.replica.region) == ("one", "http://vllm-1:8000", "eu")
    assert second.replica.api_key.get_secret_value() == "sk-1"
    (tmp_path / "key").write_text("sk-22\n")
    await received.until(lambda said: said[1].replica.api_key.get_secret_value() == "sk-22")


async def test_it_is_read_again_when_it_changes(file, listen_to):
    file.write_text("[http://a:1]")
    received = listen_to(FileSource(file))
    await received.until(is_now("a:1"))
    file.write_text("[http://a:1, http://b:1]")
    await received.until(is_now("a:1", "b:1"))
    new = file.with_suffix(".new")
    new.write_text("[http://c:1]")
    os.replace(new, file)
    await received.until(is_now("c:1"))
    file.write_text("[]")
    await received.until(is_now())
    assert len(received.said) == 4


async def test_it_is_read_again_when_a_certificate_changes(file, listen_to, tmp_path):
    ca = tmp_path / "ca.pem"
    made = ("-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=a", "-keyout", str(tmp_path / "key"))
    subprocess.run(["openssl", "req", *made, "-out", str(ca)], check=True, capture_output=True)
    certificate = ca.read_text()
    file.write_text(f"[{{url: 'https://a:1', ca_file: {ca}}}]")
    received = listen_to(FileSource(file))
    await received.until(is_now("a:1"))
    ca.write_text("nothing")
    await received.until(lambda said: "no certificate in PEM form" in said)
    ca.write_text(certificate)
    await received.until(is_now("a:1"))
    assert len(received.said) == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file is empty, expected a list"),
        ("- [", "not valid YAML"),
        ("7", "expected a list at the top"),
        ("- ftp://a", "replicas[0].url: expected an http or https URL"),
        ("- {url: 'http://a', port: 1}", "replicas[0].port: unknown key"),
        ("[http://a, {url: 'http://b', id: 'a:80'}]", "replicas: [1] is named a:80 as [0] is"),
        ("replicas: 3", "replicas: expected a list"),
    ],
)
async def test_a_mistake_is_reported_once_and_what_follows_is_taken(file, listen_to, text, problem):
    file.write_text("[http://a:1]")
    received = listen_to(FileSource(file))
    await received.until(is_now("a:1"))
    file.write_text(text)
    reported = await received.until(lambda said: isinstance(said, str))
    assert reported.startswith(f"{file}:1: ")
    assert problem in reported
    file.write_text("[http://b:1]")
    await received.until(is_now("b:1"))
    assert len(received.said) == 3


async def test_a_file_that_is_being_written_is_not_read(file, listen_to, monkeypatch):
    file.write_text("[http://a:1]")
    received = listen_to(FileSource(file))
    await received.until(is_now("a:1"))
    looks = 0
    look = listed._state

    def written_meanwhile(*files):
        nonlocal looks
        looks += 1
        state = look(*files)
        if looks < 6:
            file.write_text("".join(f"- http://b{number}:1\n" for number in range(looks)))
        return state

    monkeypatch.setattr(listed, "_state", written_meanwhile)
    await received.until(lambda said: len(said) > 1 or names(said) != ["a:1"])
    assert [names(said) for said in received.said] == [["a:1"], [f"b{number}:1" for number in range(5)]]


async def test_a_file_that_is_away_and_comes(file, listen_to):
    received = listen_to(FileSource(file))
    assert "No such file" in await received.until(lambda said: isinstance(said, str))
    file.write_text("replicas: [http://a:1]")
    await received.until(is_now("a:1"))
    file.unlink()
    assert "No such file" in await received.until(lambda said: isinstance(said, str))


async def test_a_file_that_may_be_read_at_last(file, listen_to, monkeypatch):
    def read_as_no_root(path):
        if not path.stat().st_mode & 0o400:
            raise ConfigInvalid([f"{path}: Permission denied"])
        return read_replicas(path)

    monkeypatch.setattr(listed, "read_replicas", read_as_no_root)
    file.write_text("[http://a:1]")
    file.chmod(0)
    received = listen_to(FileSource(file))
    assert "Permission denied" in await received.until(lambda said: isinstance(said, str))
    file.chmod(0o600)
    await received.until(is_now("a:1"))


def test_all_mistakes_are_reported(file):
    file.write_text("- ftp://a\n- {url: 'http://b', regoin: eu}\n")
    with pytest.raises(ConfigInvalid) as caught:
        read_replicas(file)
    assert [problem.split(": ")[0] for problem in caught.value.problems] == [f"{file}:1", f"{file}:2"]
