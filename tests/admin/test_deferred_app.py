"""The admin application is built with the first request, and again after it could not be built."""

import httpx
import pytest
from admin_port import AdminPort
from structlog.testing import capture_logs

from gateway.admin import AdminAccess, DeferredAdmin, admin_app


@pytest.fixture
def client(monkeypatch):
    """A client of an application whose building fails as often as ``failures`` holds errors."""
    failures = []
    built = AdminPort(AdminAccess()).app

    def build(_state, _access):
        if failures:
            raise failures.pop()
        return built

    monkeypatch.setattr(admin_app, "build_admin", build)
    transport = httpx.ASGITransport(DeferredAdmin(None, AdminAccess()))
    return failures, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


async def test_the_first_request_gets_its_answer(client):
    _, http = client
    assert (await http.get("/healthz")).json() == {"status": "ok"}


async def test_after_a_failure_the_next_request_builds_it(client):
    failures, http = client
    failures.append(OSError("too many open files"))
    with capture_logs() as logs:
        refused = await http.get("/metrics")
    assert refused.status_code == 500
    assert refused.json()["error"]["code"] == "internal_error"
    assert "admin_not_built" in refused.json()["error"]["message"]
    assert [log["error"] for log in logs if log["event"] == "admin_not_built"] == ["OSError('too many open files')"]
    assert (await http.get("/healthz")).status_code == 200
