"""The dashboard's pages and files. They hold no data and need no token: scripts get the data from the admin API."""

import functools
import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from gateway.core.errors import NotFound

if TYPE_CHECKING:
    from fastapi import FastAPI

ROOT = "/dashboard"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Content security policy of everything on the admin port: nothing from elsewhere, no inline script or style, and no
way from a text to markup."""

_FOLDER = Path(__file__).parent / "dashboard"
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""Content types by file extension."""

_NOT_SERVED = ".entry.js"
_SMALLEST_GZIPPED = 512


@dataclass(frozen=True, slots=True)
class _File:
    """One file, plain and compressed.

    Attributes:
        media_type: Its ``content-type``.
        plain: Its bytes.
        gzipped: Compressed; None where compression does not pay.
    """

    media_type: str
    plain: bytes
    gzipped: bytes | None


class Site:
    """The files, read and compressed once.

    Their addresses hold a hash of all of them, so browsers may keep them forever: another version has other addresses.
    """

    def __init__(self) -> None:
        paths = sorted(
            path
            for path in _FOLDER.rglob("*")
            if path.is_file() and path.suffix in _MEDIA_TYPES and not path.name.endswith(_NOT_SERVED)
        )
        contents = {path.relative_to(_FOLDER).as_posix(): path.read_bytes() for path in paths}
        page = contents.pop("index.html").decode()
        digest = hashlib.sha256(b"\0".join(part for name in contents for part in (name.encode(), contents[name])))
        self.version = digest.hexdigest()[:16]
        assets = f"{ROOT}/assets/{self.version}"
        # Preload all modules: a browser would find them one after the other.
        modules = [name for name in contents if name.endswith(".js")]
        preloads = "\n    ".join(f'<link rel="modulepreload" href="{assets}/{name}" />' for name in modules)
        self._files = {name: _file(name, content) for name, content in contents.items()}
        self._page = _file("index.html", page.replace("%PRELOADS%", preloads).replace("%ASSETS%", assets).encode())

    def page(self, accept_encoding: str) -> Response:
        """The single page of all dashboard addresses; its script shows the view of the address."""
        return _sent(self._page, accept_encoding, "no-cache")

    def asset(self, version: str, name: str, accept_encoding: str) -> Response:
        """One of its files.

        Raises:
            NotFound: No file has that name in that version.
        """
        found = self._files.get(name) if version == self.version else None
        if found is None:
            raise NotFound("There is no such file of the dashboard; load the page again.", code="unknown_path")
        return _sent(found, accept_encoding, "public, max-age=31536000, immutable")


def show_dashboard(app: "FastAPI") -> None:
    """Add the pages and their files."""
    site = _site()

    @app.get(ROOT + "/assets/{address:path}")
    async def asset(request: Request, address: str) -> Response:
        version, _, name = address.partition("/")
        return site.asset(version, name, request.headers.get("accept-encoding", ""))

    @app.get(ROOT)
    @app.get(ROOT + "/{path:path}")
    async def page(request: Request) -> Response:
        return site.page(request.headers.get("accept-encoding", ""))


def is_dashboard(path: str) -> bool:
    """Whether a path is one of the dashboard's own."""
    return path == ROOT or path.startswith(ROOT + "/")


@functools.cache
def _site() -> Site:
    """The files do not change while the process runs, and compressing them takes 50 ms."""
    return Site()


def _takes_gzip(accept_encoding: str) -> bool:
    for coding in accept_encoding.lower().split(","):
        name, _, weight = coding.replace(" ", "").partition(";q=")
        if name == "gzip":
            return weight.rstrip("0.") != "" or weight == ""
    return False


def _file(name: str, content: bytes) -> _File:
    gzipped = gzip.compress(content, 9, mtime=0) if len(content) >= _SMALLEST_GZIPPED else None
    return _File(_MEDIA_TYPES[Path(name).suffix], content, gzipped)


def _sent(file: _File, accept_encoding: str, cache_control: str) -> Response:
    headers = {"content-type": file.media_type, "cache-control": cache_control, "vary": "accept-encoding"}
    if file.gzipped is not None and _takes_gzip(accept_encoding):
        return Response(file.gzipped, headers=headers | {"content-encoding": "gzip"})
    return Response(file.plain, headers=headers)
