"""One line a request."""

import structlog

from gateway.core.settlement import Refusal, Settlement


class RequestLog:
    """An ``Observer`` that writes ``request_settled``: what was decided, expected and reported; nobody's text."""

    def __init__(self) -> None:
        self._log = structlog.get_logger("gateway.request")

    def on_settled(self, settlement: Settlement) -> None:
        """See ``Observer``."""
        s = settlement
        self._log.info(
            "request_settled",
            request_id=s.request_id,
            tenant=s.caller.tenant.id,
            key_id=s.caller.key_id,
            model=s.model,
            space=s.space,
            endpoint=str(s.endpoint),
            status=s.status,
            code=s.code,
            ending=str(s.ending) if s.ending else "unrouted",
            replica=s.decision.replica if s.decision else None,
            decision=str(s.decision.kind) if s.decision else None,
            tokens_from=str(s.token_source),
            prompt_tokens=s.prompt_tokens,
            predicted_tokens=s.predicted_tokens,
            cached_tokens=s.cached_tokens,
            completion_tokens=s.completion_tokens,
            parity=s.parity,
            ttft_ms=None if s.ttft_seconds is None else round(s.ttft_seconds * 1e3, 2),
            ms=round(s.seconds * 1e3, 2),
            warming=s.warming,
            canonical=list(s.canonical),
            resumed=s.resumed,
        )

    def on_refused(self, refusal: Refusal) -> None:
        """See ``Observer``."""
        caller = refusal.caller
        where = {"method": refusal.method, "path": refusal.path} if refusal.path else {}
        self._log.info(
            "request_refused",
            request_id=refusal.request_id,
            tenant=caller.tenant.id if caller else None,
            key_id=caller.key_id if caller else None,
            endpoint=str(refusal.endpoint),
            status=refusal.status,
            code=refusal.code,
            **where,
        )
