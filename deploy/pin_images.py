"""Writes the digest of each public image beside its tag, in every file that names one: ``make pin-images``.

Asks the image's registry, with skopeo or docker (buildx). A tag with several platforms gets the digest of its index, so
the reference is good on all of them. Changes no file unless all digests are known.
"""

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

FILES = (
    "Dockerfile",
    "docker-compose.yml",
    ".env.example",
    "deploy/kubernetes/redis.yaml",
    "deploy/kubernetes/vllm.yaml",
)
IMAGE = re.compile(r"(docker\.io/[\w./-]+:[\w.-]+)(@sha256:[0-9a-f]{64})?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SECONDS = 120


def pin(root: Path, digest_of: Callable[[str], str]) -> dict[str, str]:
    """Rewrite the files below a folder.

    Args:
        root: The folder.
        digest_of: Asks for the digest of an image, given as ``name:tag``.

    Returns:
        The digest of each image.

    Raises:
        ValueError: an answer is no digest.
    """
    texts = {root / name: (root / name).read_text() for name in FILES}
    images = sorted({match[1] for text in texts.values() for match in IMAGE.finditer(text)})
    digests = {image: digest_of(image) for image in images}
    for image, digest in digests.items():
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"the digest of {image} is not known: {digest!r}")
    for path, text in texts.items():
        path.write_text(IMAGE.sub(lambda match: f"{match[1]}@{digests[match[1]]}", text))
    return digests


def ask_registry(image: str) -> str:
    """The digest of an image, by the first tool that is installed.

    Raises:
        ValueError: none is, or it failed.
    """
    if shutil.which("skopeo"):
        return "sha256:" + hashlib.sha256(_run("skopeo", "inspect", "--raw", f"docker://{image}")).hexdigest()
    if shutil.which("docker"):
        form = "{{.Manifest.Digest}}"
        return _run("docker", "buildx", "imagetools", "inspect", "--format", form, image).decode().strip()
    raise ValueError("install skopeo, or docker with buildx")


def _run(*words: str) -> bytes:
    try:
        return subprocess.run(words, capture_output=True, check=True, timeout=_SECONDS).stdout  # noqa: S603 - from here
    except subprocess.CalledProcessError as error:
        raise ValueError(f"{' '.join(words)}: {error.stderr.decode(errors='replace').strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{' '.join(words)}: no answer in {_SECONDS} s") from error


if __name__ == "__main__":
    try:
        pinned = pin(Path(__file__).parents[1], ask_registry)
    except ValueError as problem:
        sys.exit(str(problem))
    sys.stdout.writelines(f"{image}@{digest}\n" for image, digest in pinned.items())
