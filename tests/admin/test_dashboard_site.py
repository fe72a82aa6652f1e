"""The dashboard's pages and files as the admin port sends them, over a real socket."""

import gzip
import posixpath
import re

import pytest
from admin_port import OPERATOR, PLAIN, READER, TOKENS, AdminPort, problem
from served_port import ServedPort

from gateway.admin import AdminAccess

PAGES = ("/dashboard", "/dashboard/", "/dashboard/requests/x/y", "/dashboard/requests/a%2Fb%3Cscript%3E?window=1h")
IDENTITY = {"accept-encoding": "identity"}
POLICY = {
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
}
LINK = re.compile(r'(?:href|src)="([^"]+)"')
IMPORT = re.compile(r"""(?:from|import)\s*\(?\s*["'](\.[^"']+)["']""")


@pytest.fixture
async def served():
    """With tokens, of which these tests send none unless they say so."""
    async with ServedPort(AdminPort(AdminAccess(PLAIN, TOKENS))) as served:
        yield served


@pytest.fixture
async def open_port():
    async with ServedPort(AdminPort(AdminAccess())) as served:
        yield served


async def linked(served):
    """Addresses of the files that the page names."""
    return LINK.findall((await served.http.get("/dashboard")).text)


@pytest.mark.parametrize("path", PAGES)
async def test_every_address_below_has_the_page_without_a_token(served, path):
    answer = await served.http.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert "<main" in answer.text
    assert "%" not in answer.text
    assert served.port.components.questions == []


@pytest.mark.parametrize("path", ["/dashboards", "/dashboard.html", "/admin/dashboard", "//dashboard"])
async def test_other_addresses_are_not_the_dashboards(served, path):
    problem(await served.http.get(path), 401, "unauthorized")


async def test_what_it_shows_needs_a_token(served):
    for path in ("/admin/api/summary", "/admin/api/me", "/admin/api/live", "/"):
        problem(await served.http.get(path), 401, "unauthorized")


async def test_the_page_holds_no_script_and_no_style_of_its_own(served):
    text = (await served.http.get("/dashboard")).text
    assert re.findall(r"<script(?![^>]* src=)", text) == []
    assert re.search(r"<style|\sstyle=|\son\w+=|https?://", text) is None


async def test_its_files_are_kept_forever_and_come_compressed(served):
    total = len((await served.http.get("/dashboard")).content)
    for path in dict.fromkeys(await linked(served)):
        plain = await served.http.get(path, headers=IDENTITY)
        assert plain.status_code == 200
        assert plain.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert plain.headers["vary"] == "accept-encoding"
        async with served.http.stream("GET", path, headers={"accept-encoding": "br;q=1, gzip;q=0.5"}) as answer:
            sent = b"".join([piece async for piece in answer.aiter_raw()])
        total += len(sent)
        if "content-encoding" in answer.headers:
            assert answer.headers["content-encoding"] == "gzip"
            sent = gzip.decompress(sent)
        assert sent == plain.content
    assert total < 300_000


async def test_who_does_not_want_it_compressed_gets_it_plain(served):
    (style,) = [path for path in await linked(served) if path.endswith(".css")]
    for refused in ("identity", "gzip;q=0", "gzip; q=0.000, br", "x-gzip-like", ""):
        answer = await served.http.get(style, headers={"accept-encoding": refused})
        assert "content-encoding" not in answer.headers
    for wanted in ("gzip", "deflate, GZIP", "gzip;q=1.0", "gzip ; q=0.1"):
        answer = await served.http.get(style, headers={"accept-encoding": wanted})
        assert answer.headers["content-encoding"] == "gzip"


@pytest.mark.parametrize(
    ("end", "media_type"),
    [(".js", "text/javascript; charset=utf-8"), (".css", "text/css; charset=utf-8"), (".svg", "image/svg+xml")],
)
async def test_browsers_get_the_type_of_a_file(served, end, media_type):
    paths = [path for path in await linked(served) if path.endswith(end)]
    assert paths
    for path in paths:
        answer = await served.http.get(path)
        assert answer.headers["content-type"] == media_type
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_every_module_that_another_one_imports_exists_and_is_preloaded_in_the_page(served):
    named = set(await linked(served))
    modules = {path for path in named if path.endswith(".js") and "/vendor/" not in path}
    assert len(modules) > 10
    for path in modules:
        for name in IMPORT.findall((await served.http.get(path)).text):
            assert posixpath.normpath(f"{posixpath.dirname(path)}/{name}") in named, f"{path} imports {name}"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nothing.js",
        "index.html",
        "vendor/build.sh",
        "vendor/package.json",
        "vendor/ui.entry.js",
        "../site.py",
        "../../ui/site.py",
        "%2e%2e/site.py",
        "..%2fsite.py",
        "core//api.js",
        "/etc/passwd",
        "main.js/",
        "main.js%00",
        "MAIN.JS",
    ],
)
async def test_nothing_else_is_served(served, name):
    (main,) = {path for path in await linked(served) if path.endswith("/main.js")}
    folder = main.removesuffix("main.js")
    target = f"{folder}{name}"
    answer = await served.http.send(raw(served, target))
    problem(answer, 404, "unknown_path")


def raw(served, target):
    """A request whose path is sent as it is."""
    return served.http.build_request("GET", "/", extensions={"target": target.encode()})


async def test_files_of_another_version_are_not_there(served):
    (main,) = {path for path in await linked(served) if path.endswith("/main.js")}
    version = main.split("/")[3]
    for other in ("0" * 16, version[:-1], version.upper() + "x", "..", ""):
        answer = await served.http.send(raw(served, main.replace(version, other)))
        assert "load the page again" in problem(answer, 404, "unknown_path")
        assert answer.headers["cache-control"] == "no-store"


async def test_asking_only_for_the_headers_gives_the_same(served):
    for path in ("/dashboard", *(await linked(served))[:3]):
        full, head = await served.http.get(path), await served.http.head(path)
        assert (head.status_code, head.content) == (200, b"")
        same = ("content-type", "content-length", "content-encoding", "cache-control", "content-security-policy")
        assert [head.headers.get(name) for name in same] == [full.headers.get(name) for name in same]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_pages_are_only_for_looking(served, method):
    problem(await served.http.request(method, "/dashboard"), 401, "unauthorized")
    allowed = {"authorization": f"Bearer {OPERATOR}"}
    problem(await served.http.request(method, "/dashboard/spaces", headers=allowed), 405, "method_not_allowed")


async def test_every_answer_forbids_browsers_to_guess_its_type(open_port, served):
    open_port.port.components.answers["summary"] = RuntimeError("inside")
    reader = {"authorization": f"Bearer {READER}"}
    seen = []
    for port, path, headers in (
        *((served, path, {}) for path in ("/dashboard", (await linked(served))[0], "/healthz", "/metrics", "/nowhere")),
        *((served, path, reader) for path in ("/metrics", "/", "/admin/api/me", "/admin/api/config", "/nowhere")),
        (open_port, "/admin/api/config", {"host": "evil.example"}),
        (open_port, "/admin/api/summary?modle=m", {}),
        (open_port, "/admin/api/summary", {}),
    ):
        answer = await port.http.get(path, headers=headers)
        seen.append(answer.status_code)
        assert set(answer.headers["content-security-policy"].split("; ")) == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert ("no-store" in answer.headers["cache-control"]) is (not path.startswith("/dashboard"))
        assert "access-control-allow-origin" not in answer.headers
    assert seen == [200, 200, 200, 401, 401, 200, 200, 200, 200, 404, 403, 400, 500]


@pytest.mark.parametrize("host", ["evil.example", "rebound.evil.example:8081"])
async def test_without_tokens_pages_are_not_shown_under_a_name_either(open_port, served, host):
    for path in ("/dashboard", (await linked(open_port))[0]):
        problem(await open_port.http.get(path, headers={"host": host}), 403, "host_not_allowed")
        assert (await served.http.get(path, headers={"host": host})).status_code == 200


async def test_the_front_page_lists_it(open_port):
    assert "/dashboard" in (await open_port.http.get("/")).json()["see"]


@pytest.mark.parametrize(
    ("token", "reported"),
    [
        (READER, {"id": "grafana", "role": "read", "asks_for_token": True}),
        (OPERATOR, {"id": "ops", "role": "operate", "asks_for_token": True}),
        (PLAIN, {"id": "admin_token", "role": "operate", "asks_for_token": True}),
    ],
)
async def test_a_caller_gets_its_own_identity(served, token, reported):
    answer = await served.http.get("/admin/api/me", headers={"authorization": f"Bearer {token}"})
    assert answer.json() == reported


async def test_without_tokens_every_caller_is_anonymous_and_may_do_everything(open_port):
    answer = await open_port.http.get("/admin/api/me")
    assert answer.json() == {"id": "", "role": "operate", "asks_for_token": False}
