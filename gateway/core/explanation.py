"""Request records, which explanations are made from, and their results.

These values cross a process boundary, so they are ``msgspec`` structs of plain types: the explain worker is a process
of its own.
"""

from enum import StrEnum

import msgspec

from gateway.core.canonical import Canonicalized, EditShown, RuleOutcome
from gateway.core.experiment_group import HeldOut
from gateway.core.reasons import Reason
from gateway.core.request import NO_IDENTITY, RequestIdentity


class ReplicaPrefix(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A target and the prefix that it was expected to hold when the request was placed.

    Attributes:
        replica: The replica.
        rank: Its rank.
        held_tokens: Prompt tokens.
        queue_seconds: As in ``Candidate``; 0 for a target that was no candidate.
        prefill_seconds: As in ``Candidate``; 0 likewise.
        cost_seconds: As in ``Candidate``; 0 likewise.
        barred: Why it was no candidate: ``unavailable`` (down, avoided after a failure, being warmed), ``failed`` (it
            was tried, and could not be connected to), ``pinned`` (the request may not go there). Empty for a candidate.
    """

    replica: str
    rank: int
    held_tokens: int
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    cost_seconds: float = 0.0
    barred: str = ""


class ReplyChoice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One choice of an answer, as far as the next turn's prompt should bring it back.

    Attributes:
        text: What was generated, as plain text; None if it is not only that.
        ids: Those of its tokens that are in the engine's cache, little-endian u32; None if they are not known. The
            last token of an answer is sampled but never computed itself.
        tokens: How many tokens were generated; 0 if unknown.
        has_calls: Whether it holds tool calls.
        has_reasoning: Whether it holds reasoning.
    """

    text: str | None
    ids: bytes | None
    tokens: int = 0
    has_calls: bool = False
    has_reasoning: bool = False


class SpaceKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The prefix space of a request, without its life. All empty for a request that did not get that far.

    Attributes:
        model: Id of the model.
        tokenizer: As in ``PrefixSpace``.
        template: As ``PrefixSpace.template_version``.
        owner: As ``PrefixSpace.tenant``.
        scope: As in ``PrefixSpace``.
        adapter: As in ``PrefixSpace``.
        context_limit: As in ``PrefixSpace``.
        region: As in ``PrefixSpace``.
        narrowed: Stands for the ``cache_salt`` the client itself sent; empty for none.
        variant: As in ``TokenizedPrompt``.
        prompt: As in ``PrefixSpace``.
    """

    model: str
    tokenizer: str = ""
    template: str = ""
    owner: str = ""
    scope: str = ""
    adapter: str = ""
    context_limit: int = 0
    region: str = ""
    narrowed: str = ""
    variant: str = ""
    prompt: str = ""


MEASUREMENT = "prefix-gateway-measure"
"""Client family of requests that measure: they count for limits, metrics and cost, and not in miss reports."""


class RequestRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request that was answered, with all that its explanation is made from. Times are Unix seconds.

    Attributes:
        request_id: Its id.
        at: When it was over.
        model: Id of the model.
        endpoint: Path of the API.
        tenant: Id of the tenant.
        tenant_label: Value of the metrics' ``tenant`` label.
        source: Client family: ``x-client``, else the user agent's product, else ``unknown``.
        session: As in ``identity``.
        where: Its prefix space.
        life: Short name of the space's life.
        body: The body as it was sent on, JSON; empty if the text is not to be looked at.
        parts: Token ids of every prompt, little-endian u32; empty if they are not to be looked at.
        replies: The answer's choices, as far as they are known.
        token_source: As ``TokenizedPrompt.source``.
        block_size: Tokens per block at the chosen replica.
        prompt_tokens: The engine's count, else the gateway's.
        own_tokens: The gateway's count.
        predicted_tokens: Held by the chosen replica, as predicted.
        cached_tokens: As the engine reports; None if it reports nothing that counts.
        completion_tokens: Generated tokens; None if unknown.
        replica: The replica that answered.
        rank: Its rank.
        decision: As ``Decision.kind``.
        policy: As ``Decision.policy``.
        holders: Every target of the model, the chosen one and those that were no candidates among them.
        bypasses_cache: Whether the engine computes it without using its cache.
        is_blind: Whether it was placed without a lookup in the index.
        template_tells_time: Whether the chat template itself prints the time.
        tools_first: Whether the chat template prints tools before the system message.
        status: HTTP status the client got.
        ending: As ``Ending``.
        streamed: Whether the answer was a stream.
        ttft_seconds: As in ``Settlement``.
        seconds: As in ``Settlement``.
        failed_attempts: As in ``Settlement``.
        prefill_seconds_per_token: At the chosen replica, as learned.
        sent_after_seconds: From its arrival until it was sent to the replica that answered.
        stages: Of those, seconds by stage.
        warming: Whether it was sent to fill a cache, and not by a client.
        canonical: What canonicalization did to it. ``body`` and ``parts`` are as it was sent on; without modes, nothing
            is reported about rules.
        held_out: Whether the experiment held it out.
        measured: Whether it was sent to measure, and not by an application.
        prompt: The application in totals: ``id@version`` of a registered prompt, ``(other)`` for a name that a client
            chose; empty for none.
        identity: As in ``ChatRequest``.
        dialect: Likewise.
        opening: As ``request_record.opening_and_turn``.
        turn: Number of its user messages.
        number: Names it in later ``RepeatedRequest`` messages; 0 if none will refer to it.
    """

    request_id: str
    at: float
    model: str
    endpoint: str
    tenant: str
    tenant_label: str
    source: str
    session: str
    where: SpaceKey
    life: str
    body: bytes
    parts: tuple[bytes, ...]
    replies: tuple[ReplyChoice, ...]
    token_source: str
    block_size: int
    prompt_tokens: int
    own_tokens: int
    predicted_tokens: int
    cached_tokens: int | None
    completion_tokens: int | None
    replica: str
    rank: int
    decision: str
    policy: str
    holders: tuple[ReplicaPrefix, ...]
    bypasses_cache: bool
    is_blind: bool
    template_tells_time: bool
    tools_first: bool
    status: int
    ending: str
    streamed: bool
    ttft_seconds: float | None
    seconds: float
    failed_attempts: int
    prefill_seconds_per_token: float
    sent_after_seconds: float
    stages: tuple[tuple[str, float], ...]
    warming: bool
    canonical: Canonicalized = Canonicalized()
    held_out: HeldOut = HeldOut.NO
    measured: bool = False
    prompt: str = ""
    identity: RequestIdentity = NO_IDENTITY
    dialect: str = ""
    opening: int = 0
    turn: int = 0
    number: int = 0

    @property
    def is_reported(self) -> bool:
        """Whether miss reports include it, and compare later requests with it."""
        return not (self.warming or self.measured)


class SkippedTotals(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The sums of requests without an explanation. Their missed tokens are counted already.

    Attributes:
        model: Id of their model.
        tenant: Id of their tenant.
        tenant_label: Value of the metrics' ``tenant`` label.
        source: Their client family.
        template: Their template version.
        hits_confirmed: Whether their engine reported their hits.
        at: End of the last one, Unix seconds.
        requests: Number of requests.
        prompt_tokens: Their prompt tokens.
        hits: Their hit tokens.
        prefill_seconds: Prefill seconds of their prompts without any hit.
        completion_tokens: Their generated tokens.
        prompt: Their application; as in ``RequestRecord``.
    """

    model: str
    tenant: str
    tenant_label: str
    source: str
    template: str
    hits_confirmed: bool
    at: float
    requests: int
    prompt_tokens: int
    hits: int
    prefill_seconds: float
    completion_tokens: int = 0
    prompt: str = ""

    @staticmethod
    def of(record: RequestRecord) -> "SkippedTotals":
        """A request as a sum of one, with the same hits as in its explanation."""
        hits = record.cached_tokens
        if hits is None:
            scale = record.prompt_tokens / record.own_tokens if record.own_tokens else 1.0
            hits = 0 if record.bypasses_cache else round(record.predicted_tokens * scale)
        prompt_tokens = max(record.prompt_tokens, 0)
        return SkippedTotals(
            record.model,
            record.tenant,
            record.tenant_label,
            record.source,
            record.where.template,
            record.cached_tokens is not None,
            record.at,
            1,
            prompt_tokens,
            min(max(hits, 0), prompt_tokens),
            prompt_tokens * record.prefill_seconds_per_token,
            record.completion_tokens or 0,
            record.prompt,
        )


class CacheHistory(StrEnum):
    """Kinds of events that change caches."""

    RESTARTED = "restarted"
    """A replica came back as another process, or its cache was emptied."""
    LEFT = "left"
    """A replica went down, or was removed."""
    RETURNED = "returned"
    """A replica that was down is up again."""
    LIFE_ENDED = "life_ended"
    """The life of a prefix space ended."""


class CacheEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event that changed a cache.

    Attributes:
        what: Its kind.
        at: When.
        name: Id of the replica, or short name of the life.
        cause: Of a life that ended: as ``ResetCause``.
    """

    what: CacheHistory
    at: float
    name: str
    cause: str = ""


class Attribution(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Missed tokens with one reason.

    Attributes:
        reason: Why.
        tokens: How many.
        is_confirmed: Whether the engine's report confirms it; else it is the gateway's prediction.
        note: Details in a few words; may be empty. Holds no text of the prompt.
    """

    reason: Reason
    tokens: int
    is_confirmed: bool
    note: str = ""


class Difference(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first difference between a request and its reference.

    Attributes:
        reason: Its class: one of the reasons below ``Rung.REUSABLE``.
        detail: Details, as a code: see ``explain.diff``.
        path: Where, as a path into the body: ``messages[0].content``, ``tools[2].function.description``.
        message: Number of the message from 0; None if it is none.
        role: The message's role; empty if it is none.
        line: Line within the text from 1; 0 if it is no text.
        column: Character within the line from 1; 0 if it is no text.
        before: The reference's text around it, masked; empty if there is none.
        after: The request's text around it, masked; empty if there is none.
        said: What changed, in one sentence for people. Holds no text of the prompt but names of tools and keys.
    """

    reason: Reason
    detail: str
    path: str
    message: int | None = None
    role: str = ""
    line: int = 0
    column: int = 0
    before: str = ""
    after: str = ""
    said: str = ""


class ReferenceShown(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The earlier request that a request was compared with.

    Attributes:
        request_id: Of the earlier request.
        at: When that was over.
        source: Its client family.
        chosen_by: ``session``, ``conversation``, ``skeleton``, ``similar`` or ``beginning``.
        equal_tokens: Length of the common prefix in tokens.
    """

    request_id: str
    at: float
    source: str
    chosen_by: str
    equal_tokens: int


class TokenWindows(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Token ids around the first differing one. They reveal the text: to be shown masked only.

    Attributes:
        before: The reference's, little-endian u32.
        after: The request's, likewise.
        first: Number of equal ids in front.
    """

    before: bytes
    after: bytes
    first: int


class VaryingSlot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value in the leading messages that differs from an earlier request, as a rule could find it.

    Attributes:
        regex: Finds it; the first group is the value. Holds only text that both requests have in common.
        name: A name for it in the configuration.
        reason: The class of the difference.
        message: Number of the message.
        start: Where the value begins in the message's text.
        end: Where it ends.
        is_kept: Whether this request has the same value there as the turn before, so the value belongs to the
            conversation. Only the regex and the reason are set then.
    """

    regex: str
    name: str
    reason: Reason
    message: int = 0
    start: int = 0
    end: int = 0
    is_kept: bool = False


class Explanation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The explanation of a request: every prompt token is a hit or has a miss reason.

    Attributes:
        prompt_tokens: All prompt tokens.
        hits: Tokens that were not computed again.
        hits_confirmed: Whether the engine reported the hits.
        rungs: The ladder, in the order of ``Rung``; the last one is ``prompt_tokens``.
        missed: Missed tokens by reason; together with ``hits`` they are ``prompt_tokens``. Each reason at most once.
        reference: What it was compared with; None if there was nothing.
        difference: The first difference; None if there is none, or nothing to compare with.
        turn: Number of the conversation's turn from 1: how many messages of the user it has. 0 if it is none.
        was_skipped: Whether text and tokens were not compared, because of overload.
        tokens: Token ids around the first differing one; None without a difference, or where ids cannot be compared.
        canonical: Outcomes of the rules that change the request.
        edits: Their first edits.
        observed: For how many requests ``canonical`` stands: 1, or more if its conversation was chosen by chance; 0 if
            savings were not computed: then ``canonical`` has no saved and lost tokens.
        left_out: Whether no rule was tried, because nothing was avoidable and its conversation is not in the sample.
        slot: The differing value, if a rule that is not configured yet could find it.
        conversation: Its session, or the id of the first request known of its conversation; empty without its text.
    """

    prompt_tokens: int
    hits: int
    hits_confirmed: bool
    rungs: tuple[int, ...]
    missed: tuple[Attribution, ...]
    reference: ReferenceShown | None = None
    difference: Difference | None = None
    turn: int = 0
    was_skipped: bool = False
    tokens: TokenWindows | None = None
    canonical: tuple[RuleOutcome, ...] = ()
    edits: tuple[EditShown, ...] = ()
    observed: float = 0
    slot: VaryingSlot | None = None
    conversation: str = ""
    left_out: bool = False

    @property
    def weight(self) -> float:
        """For how many requests its outcomes count. Those without savings are edits of applied rules."""
        return self.observed or 1
