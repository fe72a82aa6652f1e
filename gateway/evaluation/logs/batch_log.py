"""Input files of OpenAI's Batch API: ``{"custom_id": …, "method": "POST", "url": …, "body": {…}}`` a line."""

from collections.abc import Mapping
from typing import Any

from gateway.evaluation.logs.entry_fields import text_of
from gateway.evaluation.logs.logged_request import LoggedRequest, UnreadableEntry
from gateway.evaluation.logs.request_bodies import read_body


def takes_batch(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is a line of a batch."""
    return "custom_id" in entry and isinstance(entry.get("body"), dict)


def read_batch(entry: Mapping[str, Any], place: str) -> LoggedRequest:
    """The request of one line; a batch has no times.

    Raises:
        OtherEntry: It is a request to an API that generates no text.
        UnreadableEntry: There is no body in it.
    """
    body = entry.get("body")
    if not isinstance(body, dict):
        raise UnreadableEntry("a line of a batch without `body`")
    endpoint, fields = read_body(body, text_of(entry.get("url")))
    return LoggedRequest(place, endpoint, fields, source="batch")
