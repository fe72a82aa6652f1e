"""Requests to screen, and an observer that remembers."""

import contextlib
import json

import orjson

from gateway.canon.pii import PersonalDataScreen
from gateway.config.personal_data_settings import PersonalDataSettings
from gateway.core.ids import ModelId, RequestId, TenantId
from gateway.core.request import ChatRequest, Endpoint
from gateway.core.tenant import Caller, PersonalDataMode, Tenant
from gateway.routing.fair_threads import FairThreads

SECRET = "anna.secret@example.com"
"""What must show up nowhere."""


class Remembering:
    def __init__(self):
        self.seen = []
        self.skipped = 0
        self.refused = []

    def on_personal_data_skipped(self, tenant):
        self.skipped += 1

    def on_detector_failed(self, tenant, *, refused):
        self.refused.append(refused)

    def on_personal_data(self, request, space, finding, *, shared, new):
        assert space
        self.seen.append((request.caller.tenant.id, finding, shared, new))


def chat(messages, *, mode="report", session=None, **other):
    return request({"model": "m", "messages": messages, **other}, mode=mode, session=session)


def request(fields, *, mode="report", session=None, endpoint=Endpoint.CHAT, body=None, **other):
    body = json.dumps(fields).encode() if body is None else body
    return ChatRequest(
        endpoint=endpoint,
        query=b"",
        body=body,
        fields=parsed(body),
        headers=(),
        model=ModelId("m"),
        stream=False,
        usage_wanted=False,
        request_id=RequestId("r"),
        session=session,
        received_at=0.0,
        caller=Caller(Tenant(TenantId("acme"), personal_data=PersonalDataMode(mode))),
        **other,
    )


def parsed(body):
    """As ``api/parse.py`` reads it."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body)


def system(text, question="hello"):
    return [{"role": "system", "content": text}, {"role": "user", "content": question}]


@contextlib.asynccontextmanager
async def screening(**settings):
    """A running screen and what it reports."""
    observer = Remembering()
    threads = FairThreads(1, 2**20)
    screen = PersonalDataScreen(PersonalDataSettings(**settings), threads, observer)
    screen.start()
    try:
        yield screen, observer
    finally:
        await screen.stop()
        threads.shutdown()
