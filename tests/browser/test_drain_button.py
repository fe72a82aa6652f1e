"""Taking a replica out of use from the replicas page: confirmed first, with what is left, and taken back."""

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import expect

from browser.pages import REPLICAS, arrived
from browser.processes import Engine
from browser.stage import CHAT, OPERATE, READ, Stage, eventually, key

pytestmark = pytest.mark.slow


def test_replica_is_drained_when_confirmed_shows_what_is_left_and_is_taken_back(visit, own_stage: Stage):
    stage = own_stage
    for engine in stage.engines:
        show(engine, "hang")
    with waiting(stage):
        eventually(lambda: any(each["requests"] for each in stage.asked("replicas")["replicas"]))
        home = next(each["id"] for each in stage.asked("replicas")["replicas"] if each["requests"])
        for engine in stage.engines:
            show(engine, "")
        visitor = visit(stage.admin)
        page = visitor.open("replicas")
        visitor.sign_in(OPERATE)
        arrived(page, REPLICAS)
        card = page.get_by_role("article", name=home)
        dialog = page.get_by_role("dialog")
        card.get_by_role("button", name=f"Drain {home}").click()
        expect(dialog).to_contain_text("The 1 request that it has now")
        expect(dialog).not_to_contain_text("No other replica")
        dialog.get_by_role("button", name="Cancel").click()
        expect(dialog).to_have_count(0)
        assert state(stage, home) == "ready"
        card.get_by_role("button", name=f"Drain {home}").click()
        dialog.get_by_role("button", name="Drain", exact=True).click()
        expect(dialog).to_have_count(0)
        expect(card.get_by_text("draining", exact=True)).to_be_visible()
        expect(card).to_contain_text("an operator ordered it")
        expect(card).to_contain_text("1 request left")
        assert state(stage, home) == "draining"
        stage.send("Where is parcel 1?")
        assert requests(stage, home) == 1

    eventually(lambda: requests(stage, home) == 0)
    expect(card).to_contain_text("it can be stopped")
    other = next(each["id"] for each in stage.asked("replicas")["replicas"] if each["id"] != home)
    page.get_by_role("button", name=f"Drain {other}").click()
    expect(dialog).to_contain_text("its clients are refused (503)")
    dialog.get_by_role("button", name="Cancel").click()
    card.get_by_role("button", name=f"Use {home} again").click()
    dialog.get_by_role("button", name="Use again", exact=True).click()
    expect(dialog).to_have_count(0)
    expect(card.get_by_text("ready", exact=True)).to_be_visible()
    assert state(stage, home) == "ready"


def test_token_that_may_only_look_is_offered_no_draining(visit, known: Stage):
    visitor = visit(known.admin)
    page = visitor.open("replicas")
    visitor.sign_in(READ)
    arrived(page, REPLICAS)
    expect(page.get_by_role("button", name=re.compile("drain|again", re.IGNORECASE))).to_have_count(0)


@contextlib.contextmanager
def waiting(stage: Stage) -> Iterator[None]:
    """A request whose client waits as long as this lasts, and then leaves."""
    body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "Are you there?"}]}).encode()
    address = urlsplit(stage.gateway.public)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: {address.netloc}\r\nauthorization: Bearer {key('acme')}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((address.hostname, address.port), 10) as client:
        client.sendall(head.encode() + body)
        yield


def show(engine: Engine, fault: str) -> None:
    """Have an engine show a fault; empty for none."""
    httpx.post(f"{engine.url}/simulator/fault", json={"spec": fault}, trust_env=False).raise_for_status()


def state(stage: Stage, name: str) -> str:
    return str(_shown(stage, name)["state"])


def requests(stage: Stage, name: str) -> int:
    return int(_shown(stage, name)["requests"])


def _shown(stage: Stage, name: str) -> dict[str, Any]:
    return next(each for each in stage.asked("replicas")["replicas"] if each["id"] == name)
