"""What the image and the stacks are made of is named by its hash. No network."""

import re
import sys
import tomllib

import pytest
from manifests import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.insert(0, str(ROOT / "deploy"))

import pin_images

LOCK = (ROOT / "deploy" / "container" / "requirements.lock").read_text()
ENTRIES = [re.split(r"==|\s", entry, maxsplit=2) for entry in re.split(r"^(?=[^#\s])", LOCK, flags=re.MULTILINE)[1:]]


def test_every_dependency_of_the_image_is_locked_within_its_range():
    given = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = given["project"]
    needed = [
        *project["dependencies"],
        *project["optional-dependencies"]["tracing"],
        *given["build-system"]["requires"],
    ]
    locked = {canonicalize_name(name): version for name, version, _ in ENTRIES}
    for requirement in map(Requirement, needed):
        version = locked.get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name} is not in the lock file: make lock"
        assert requirement.specifier.contains(version), f"{requirement} is locked at {version}: make lock"


def test_every_locked_package_has_hashes_and_no_place():
    assert len(ENTRIES) > 50
    for name, _, rest in ENTRIES:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", rest), name
    assert not re.search("://|--(extra-)?index|--find-links", LOCK)


def test_the_image_is_built_from_locked_packages_only():
    installs = re.findall(r"pip install (.*?)(?: \\)?$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert installs == [
        "--require-hashes --only-binary :all: --requirement requirements.lock",
        "--no-deps --no-build-isolation .",
    ]


WITHOUT_DIGEST = {"docker.io/vllm/vllm-openai:v0.32.0"}
"""Gets one with the next `make pin-images`, which needs a registry."""


def test_public_images_have_a_digest_the_same_everywhere():
    found = {
        match.groups() for name in pin_images.FILES for match in pin_images.IMAGE.finditer((ROOT / name).read_text())
    }
    assert len(found) == len({image for image, _ in found}) >= 6
    assert {image for image, digest in found if not digest} <= WITHOUT_DIGEST


@pytest.fixture
def copied(tmp_path):
    for name in pin_images.FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    return tmp_path


def fake_tool(folder, name, script):
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("tool", ["skopeo", "docker"])
def test_pinning_writes_what_the_registry_answers(copied, monkeypatch, tool):
    programs = copied / "programs"
    programs.mkdir()
    # Of what skopeo prints, the digest is computed.
    answers = {"skopeo": f"printf '{{}}'; echo $* >> {programs}/asked", "docker": f"echo sha256:{'a' * 64}"}
    fake_tool(programs, tool, answers[tool])
    monkeypatch.setenv("PATH", str(programs))
    digests = pin_images.pin(copied, pin_images.ask_registry)
    empty = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert set(digests.values()) == {empty if tool == "skopeo" else f"sha256:{'a' * 64}"}
    for name in pin_images.FILES:
        text = (copied / name).read_text()
        assert {match[2] for match in pin_images.IMAGE.finditer(text)} == {f"@{next(iter(digests.values()))}"}
        # Nothing else is changed.
        assert pin_images.IMAGE.sub(r"\1", text) == pin_images.IMAGE.sub(r"\1", (ROOT / name).read_text())
    if tool == "skopeo":
        assert "inspect --raw docker://docker.io/library/redis:7\n" in (programs / "asked").read_text()


@pytest.mark.parametrize("script", ["exit 1", "echo latest", None])
def test_a_digest_that_is_not_known_changes_nothing(copied, monkeypatch, script):
    programs = copied / "programs"
    programs.mkdir()
    if script:
        fake_tool(programs, "docker", script)
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(ValueError, match=r"docker|digest"):
        pin_images.pin(copied, pin_images.ask_registry)
    assert all((copied / name).read_text() == (ROOT / name).read_text() for name in pin_images.FILES)
