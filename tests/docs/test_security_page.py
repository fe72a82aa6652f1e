"""Limits on the security page are those of the code."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from gateway.admin import live_stream as live
from gateway.admin import orders
from gateway.admission import tenant_limits
from gateway.api import cors, identity, parse
from gateway.canon.pii import counting, detector, placeholders
from gateway.cluster import redis_context as context
from gateway.config import server_settings
from gateway.config import yaml_document as document
from gateway.config import yaml_tree as tree
from gateway.config.settings import Settings
from gateway.core import api_keys as keys
from gateway.core import request
from gateway.engines import kv_event_reader
from gateway.engines import samples as limits
from gateway.fleet import engine_calls as engines
from gateway.fleet import health, membership
from gateway.http_client import connection
from gateway.index import holdings as held
from gateway.index import orphans as aside
from gateway.kv_events import feed, order
from gateway.kv_events import zmq_sockets as sockets
from gateway.proxy import response as answer
from gateway.proxy import restored_answer, sse
from gateway.proxy.resume import continued as eligible
from gateway.proxy.resume import resumable_stream as stream
from gateway.routing import fair_threads as threads
from gateway.server import client_connection as protocol
from gateway.server import refusal, work_budget
from gateway.spaces import salt
from gateway.spaces import space_epoch as lives
from gateway.stats import counters as counts
from gateway.telemetry import audit as audit_writer
from gateway.telemetry.tracing import export
from gateway.tokenize import encoder as size
from gateway.tokenize import engine_tokenizer as remote
from gateway.warmup import warmer

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "security.md").read_text()
TABLE = PAGE.partition("<!-- limits: begin")[2].partition("<!-- limits: end")[0]
ROWS = [tuple(cell.strip() for cell in line.split("|")[1:4]) for line in TABLE.splitlines() if line.startswith("| ")][
    2:
]
LIMITS = [row for row in ROWS if row[2]]

FACTORS = {"KiB": 2**10, "MiB": 2**20, "s": 1, "levels": 1, "characters": 1}
FIXED: dict[str, Any] = {
    "Text that is tokenized here; longer prompts are balanced by stand-in tokens": size.MAX_TEXT_BYTES,
    "Long texts that wait for a thread": threads._MAX_JOBS,
    "Prompts for which an engine is asked for tokens": remote._MAX_PROMPTS,
    "Body of a stream that another replica can continue": eligible._MAX_BODY_BYTES,
    "Interim (1xx) responses before the final one": connection._MAX_INTERIM,
    "Metrics page of a replica": health._MAX_METRICS_BYTES,
    "Tokens that an engine sends for a prompt": engines._MAX_TOKENS_BYTES,
    "Model list of a replica": health._MAX_LIST_BYTES,
    "Server facts and event sources of a replica": limits.MAX_DOCUMENT_BYTES,
    "Bytes of batches that wait for a missing one": order._WAITING_BYTES,
    "Batches of one replay": feed._REPLAY_BATCHES,
    "Time of one replay": feed._REPLAY_SECONDS,
    "Events of one batch": kv_event_reader._MAX_EVENTS,
    "Tokens of one event": kv_event_reader._MAX_TOKENS,
    "Bytes of blocks that wait for their parent, per target": aside.BYTES_LIMIT,
    "Nodes of a YAML file": document._MAX_NODES,
    "Nesting of a YAML file": document.MAX_DEEP,
    "Characters of all values of a YAML file": tree._MAX_CHARACTERS,
    "Objects and lists in a body": server_settings._MAX_CONTAINERS,
    "Prompts in one request": parse._MAX_PROMPTS,
    "Chunks of a body that have fewer than 64 bytes on average": protocol.MAX_TINY_CHUNKS,
    "Headers of a request": protocol.MAX_HEADERS,
    "Bytes of a head that are read beyond `server.max_header_bytes`, for the `origin` behind them": (
        work_budget.BYTES_BEYOND
    ),
    "Work for what clients send, in one iteration of the event loop, before their requests are admitted": (
        work_budget._SECONDS_PER_ITERATION
    ),
    "Refused client may go on sending": refusal._LINGER_SECONDS,
    "API key or admin token": keys._LONGEST_KEY,
    "Path in logs and errors": keys._SHOWN_CHARS,
    "Client's own `cache_salt`": salt._LONGEST_CLIENT_SALT,
    "Request headers that one preflight allows": cors._MAX_ALLOWED_HEADERS,
    "Unlisted tenants whose use of their limits is remembered": tenant_limits.MAX_UNLISTED,
    "Ended spaces shown": lives._ENDED_KEPT,
    "Head of a replica's answer": connection._MAX_OVERHEAD,
    "Answer that is held until it is complete; larger ones are streamed through": answer._MAX_HELD_BYTES,
    "One event of a stream that is read": sse._LONGEST_EVENT,
    "Lines of one event of a stream": sse._MAX_LINES,
    "Stream that is kept to resume it": stream._MAX_BYTES,
    "Data-parallel ranks of a replica": limits.MAX_RANKS,
    "Batches that wait in a socket": sockets._QUEUED_BATCHES,
    "Batches of a replay that wait in a socket": sockets._QUEUED_REPLAY_BATCHES,
    "A YAML file": document.MAX_BYTES,
    "A secret file": tree._MAX_SECRET_BYTES,
    "Batches that wait for a missing one": order._WAITING_LIMIT,
    "Blocks that wait for their parent, per target": aside.LIMIT,
    "Blocks named and never described, per target": held._UNDESCRIBED_LIMIT,
    "Body that is explained by its text": request.LONG_BODY_BYTES,
    "Label values of one total": counts._MAX_KEYS,
    "Pieces of personal data counted of a prompt": counting._MAX_FINDINGS,
    "Answer of a detector of personal data": detector._MAX_ANSWER_BYTES,
    "Findings in such an answer": detector._MAX_FINDINGS,
    "Values numbered in a request, and remembered of a session": placeholders.MAX_VALUES,
    "Values remembered of all conversations": placeholders.MAX_REMEMBERED,
    "Answer without streaming in which values are restored": restored_answer.MAX_WHOLE_BYTES,
    "Requests that wait to be searched": counting._MAX_WAITING,
    "Context blocks that wait for Redis": context._WAITING_BYTES,
    "Lines of the audit log that wait for the disk": audit_writer._MAX_LINES,
    "Spans that wait to be exported": export._QUEUED_SPANS,
    "Body of a reset": orders.RESET_BYTES,
    "Body of an order to drain or to add a replica": orders.DRAIN_BYTES,
    "Replicas added at the admin port": membership._MAX_ADDED,
    "Characters of the name of a session or an agent": identity._LONGEST,
    "Body of an order to warm": orders.WARM_BYTES,
    "Orders to warm at the same time": warmer._MAX_ORDERS,
    "Clients of the live stream": live.MAX_LISTENERS,
}


def number(text: str) -> float:
    """A default as the page has it, in bytes, seconds or pieces."""
    match = re.match(r"([\d,.]+)(?: (\w+))?", text)
    assert match, text
    return float(match[1].replace(",", "")) * FACTORS.get(match[2] or "", 1)


def default_of(setting: str) -> Any:
    """The default of ``section.name``; entries of a list are named ``[]``, those of a mapping ``NAME``."""
    model: type[BaseModel] = Settings
    *path, name = setting.replace("[]", "").replace(".NAME", "").split(".")
    for part in path:
        annotation = model.model_fields[part].annotation
        model = next(
            each
            for each in (annotation, *get_args(annotation))
            if isinstance(each, type) and issubclass(each, BaseModel)
        )
    return model.model_fields[name].default


SETTINGS = [row for row in LIMITS if row[2].startswith("`")]


@pytest.mark.parametrize(("limit", "default", "setting"), SETTINGS)
def test_default_of_a_setting(limit, default, setting):
    actual = default_of(setting.strip("`"))
    if actual is None:
        assert default == "none"
        return
    # Some settings count MiB themselves.
    unit = 2**20 if setting.strip("`").endswith("_mib") else 1
    assert number(default) == actual * unit


@pytest.mark.parametrize("limit", FIXED)
def test_fixed_limit(limit):
    (found,) = [row for row in LIMITS if row[0] == limit]
    assert found[2] == "fixed"
    assert number(found[1]) == FIXED[limit]


def test_configured_origins():
    (found,) = [row for row in LIMITS if row[0] == "Configured origins"]
    metadata = server_settings.ServerSettings.model_fields["cors_origins"].metadata
    assert number(found[1]) == next(each.max_length for each in metadata if hasattr(each, "max_length"))


def test_every_row_of_the_table_is_complete():
    assert len(SETTINGS) > 25
    for limit, default, setting in LIMITS:
        assert limit
        assert default
        assert setting.startswith("`") or setting in ("fixed", "outside")


@pytest.mark.parametrize("page", ["../README.md", "architecture.md"])
def test_page_is_linked(page):
    assert "security.md" in (DOCS / page).read_text()
