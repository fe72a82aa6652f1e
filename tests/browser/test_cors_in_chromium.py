"""Pages of another origin use the public port: as configured, and not otherwise. A real browser decides."""

from pathlib import Path
from typing import Any

import pytest

from browser.stage import CHAT, Stage, key, staged

ASK = """
async ([url, path, options]) => {
  try {
    const answer = await fetch(url + path, options);
    const pieces = [];
    const reader = answer.body.getReader();
    const decoder = new TextDecoder();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      pieces.push(decoder.decode(value, { stream: true }));
    }
    return {
      status: answer.status,
      text: pieces.join(""),
      pieces: pieces.length,
      headers: Object.fromEntries(answer.headers),
    };
  } catch (error) {
    return { blocked: String(error) };
  }
}
"""
HEADERS = {
    "authorization": f"Bearer {key('acme')}",
    "content-type": "application/json",
    "x-session-id": "page-1",
    "x-stainless-lang": "js",
}
BODY = (
    '{"model":"demo","messages":[{"role":"user","content":"Hello."}],"max_tokens":200,"ignore_eos":true,"stream":true}'
)
POST: dict[str, Any] = {"method": "POST", "headers": HEADERS, "body": BODY}
QUIET = ("CORS", "net::ERR", "40", "43")


@pytest.fixture
def page_of_another_site(visit, other_site):
    """A page that is not the gateway's; blocked and refused requests are no problems here."""
    visitor = visit("")
    visitor.expects(*QUIET)
    visitor.page.goto(other_site)
    return visitor.page


def with_origins(folder: Path, *origins: str):
    return staged(folder, server={"cors_origins": list(origins)})


def ask(page, stage: Stage, path: str, options: dict[str, Any] | None = None) -> dict[str, Any]:
    return page.evaluate(ASK, [stage.gateway.public, path, options or {}])


def test_page_of_a_configured_origin_streams_and_reads_errors(tmp_path, page_of_another_site, other_site):
    page = page_of_another_site
    with with_origins(tmp_path, other_site.rstrip("/")) as stage:
        stream = ask(page, stage, CHAT, POST)
        assert stream.get("status") == 200, stream
        assert stream["text"].endswith("data: [DONE]\n\n")
        assert stream["pieces"] > 1
        assert stream["headers"]["x-gateway-decision"] == "cold"
        assert stream["headers"]["x-request-id"]
        models = ask(page, stage, "/v1/models", {"headers": HEADERS})
        assert models["status"] == 200
        for path, options, status, code in (
            (CHAT, {**POST, "headers": {"content-type": "application/json"}}, 401, "invalid_api_key"),
            ("/v1/batches", POST, 404, "unknown_path"),
            (CHAT, {"headers": HEADERS}, 405, "method_not_allowed"),
            # The HTTP layer refuses it, before there is a request.
            ("/v1/models", {"headers": {"x-long": "y" * 70_000}}, 431, "headers_too_large"),
        ):
            refused = ask(page, stage, path, options)
            assert refused.get("status") == status, refused
            assert f'"code":"{code}"' in refused["text"]


def test_page_is_blocked_where_its_origin_is_not_configured(known, page_of_another_site):
    for path, options in (
        (CHAT, POST),
        ("/v1/models", {"headers": HEADERS}),
        ("/v1/models", {}),
        ("/health", {}),
        (CHAT, {**POST, "headers": {"content-type": "text/plain"}}),
    ):
        assert "Failed to fetch" in ask(page_of_another_site, known, path, options)["blocked"]


def test_every_origin_and_never_with_credentials(tmp_path, page_of_another_site):
    page = page_of_another_site
    with with_origins(tmp_path, "*") as stage:
        assert ask(page, stage, CHAT, POST)["status"] == 200
        assert "Failed to fetch" in ask(page, stage, CHAT, {**POST, "credentials": "include"})["blocked"]
        # The admin port allows no other origin, with any setting of the public port.
        reported = page.evaluate(ASK, [stage.admin, "/healthz", {}])
        assert "Failed to fetch" in reported["blocked"]
