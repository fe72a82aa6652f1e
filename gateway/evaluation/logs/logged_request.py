"""One request as a log has it."""

from typing import Any

import msgspec

from gateway.core.request import Endpoint


class UnreadableEntry(Exception):
    """An entry of a log that is no request that can be read; the message is the reason, without text of the entry."""


class OtherEntry(Exception):
    """An entry that is no request for text generation, such as a health check: it is skipped without being counted."""


class ReportedUsage(msgspec.Struct, frozen=True, gc=False):
    """Tokens as the engine reported them.

    Attributes:
        prompt_tokens: Prompt tokens, cached ones included.
        cached_tokens: Of these, those that were not computed again; None if nothing is reported.
        output_tokens: Generated tokens.
    """

    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int


class LoggedRequest(msgspec.Struct, frozen=True):
    """One recorded request.

    Attributes:
        place: File and line: ``gateway.log:12``.
        endpoint: Which API was called; requests to other APIs are converted.
        body: The request's body, in the form of that API.
        at: When it came, Unix seconds; None if the log does not say it.
        source: The client family, as ``client_family``; ``unknown`` if the log does not say it.
        tenant: Whose request it is: the name of a key, a team or an organization; empty if unknown.
        session: The conversation, as the client names it; empty if unknown.
        usage: Tokens as reported; None if the log has no answers.
        reply: The answer's text; None if unknown, or if it is not only text.
        token_ids: Token ids of the prompt, little-endian u32, if the engine logged them.
    """

    place: str
    endpoint: Endpoint
    body: dict[str, Any]
    at: float | None = None
    source: str = "unknown"
    tenant: str = ""
    session: str = ""
    usage: ReportedUsage | None = None
    reply: str | None = None
    token_ids: bytes | None = None
