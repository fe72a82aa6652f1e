"""The result of an analysis, as it is printed as JSON and as reports are made from."""

from typing import Any

import msgspec


class RepeatedTokens(msgspec.Struct, frozen=True):
    """Prompt tokens as a number and as a share of all of them."""

    tokens: int
    share: float


class LogRead(msgspec.Struct, frozen=True):
    """What was read.

    Attributes:
        files: Format of each file, by its name.
        requests: Requests read.
        others: Entries that are no requests for text.
        unreadable: Entries that could not be read.
        unreadable_reasons: For each reason, the number of entries and the first places.
        without_time: Requests of logs that have no times.
        begin: Time of the first request, Unix seconds.
        end: Time of the last one.
        tokenizer: What tokens were counted with.
        notes: What limits the figures, in sentences.
    """

    files: dict[str, str]
    requests: int
    others: int
    unreadable: int
    unreadable_reasons: list[dict[str, Any]]
    without_time: int
    begin: float
    end: float
    tokenizer: str
    notes: list[str]


class ReportedHits(msgspec.Struct, frozen=True):
    """Hits as the engines reported them, of the requests whose answers report any.

    Attributes:
        requests: How many these are.
        prompt_tokens: Their prompt tokens, as reported.
        cached_tokens: The cached ones.
        hit_rate: Their share.
        ideal_hit_rate: What an ideal cache would have reached for the same requests.
    """

    requests: int
    prompt_tokens: int
    cached_tokens: int
    hit_rate: float
    ideal_hit_rate: float


class Lengths(msgspec.Struct, frozen=True):
    """A distribution of lengths in tokens.

    Attributes:
        mean: Mean.
        p50: Median.
        p90: 90th percentile.
        p99: 99th percentile.
        bars: Lower edge, upper edge and share of the requests.
    """

    mean: float
    p50: float
    p90: float
    p99: float
    bars: list[tuple[float, float, float]]


class RepeatInterval(msgspec.Struct, frozen=True):
    """A time to live, and what a cache with it would reuse.

    Attributes:
        seconds: The time.
        label: Its name.
        share: Share of the repeated tokens that were used within that time before.
        hit_rate: Hit rate of an ideal cache with that time to live.
    """

    seconds: float
    label: str
    share: float
    hit_rate: float


class ApplicationShare(msgspec.Struct, frozen=True):
    """An application: requests that begin alike.

    Attributes:
        name: Its client families, and its opening.
        opening: The first words, without values that vary; empty for requests without a common opening.
        sources: Requests by client family.
        requests: Requests.
        prompt_tokens: Prompt tokens.
        share: Their share of all prompt tokens.
        repeated: Tokens that an ideal cache reuses.
        hit_rate: Their share of the application's prompt tokens.
        behind_changes: Tokens that repeat behind something that changes.
        reasons: Missed tokens by reason.
    """

    name: str
    opening: str
    sources: dict[str, int]
    requests: int
    prompt_tokens: int
    share: float
    repeated: int
    hit_rate: float
    behind_changes: int
    reasons: dict[str, int]


class ReasonShare(msgspec.Struct, frozen=True):
    """Missed tokens with one reason, as in the live ladder."""

    code: str
    title: str
    tokens: int
    share: float
    advice: str


class RuleGain(msgspec.Struct, frozen=True):
    """The effect of one rule of canonicalization.

    Attributes:
        rule: Its name; ``all`` for all of them together.
        requests: Requests that it changes.
        saved_tokens: Tokens reused only with the rule.
        lost_tokens: Tokens reused only without it.
        points: Percentage points of the hit rate.
    """

    rule: str
    requests: int
    saved_tokens: int
    lost_tokens: int
    points: float


class ExpectedHits(msgspec.Struct, frozen=True):
    """The hit rate of one fleet, simulated.

    Attributes:
        replicas: Number of replicas.
        cache_tokens: Tokens that the cache of each one holds.
        by_policy: Hit rate by the name of the policy.
    """

    replicas: int
    cache_tokens: int
    by_policy: dict[str, float]


class Verdict(msgspec.Struct, frozen=True):
    """What to do.

    Attributes:
        kind: ``start_with``, ``align_first`` or ``little_to_gain``.
        sentence: One sentence.
    """

    kind: str
    sentence: str


class LogAnalysis(msgspec.Struct, frozen=True):
    """The result.

    Attributes:
        verdict: What to do.
        read: What was read.
        requests: Requests that were analyzed.
        prompt_tokens: Their prompt tokens.
        ideal: Tokens that one unbounded cache reuses.
        behind_changes: Tokens that repeat behind something that changes: not reused until it is aligned.
        long_tokens: Length from which a shared prefix counts as long.
        long_prefixes: Share of the requests with a long shared prefix.
        long_prefix_tokens: Share of the prompt tokens in them.
        reported: Hits as reported; None if the log has no answers with usage.
        prompts: Lengths of prompts.
        shared_prefixes: Lengths of the reused prefixes, zeros included.
        intervals: Repeat intervals against times to live; empty for a log without times.
        interval_bars: Lower edge and upper edge in seconds, and share of the repeated tokens.
        reasons: Missed tokens by reason, most tokens first.
        ladder: The rungs of the ladder, as in the admin API.
        applications: Most prompt tokens first.
        sources: The same for client families.
        families: Families that send the same content in another form.
        findings: Causes of missed tokens, with place and example.
        rules: The gain of each rule, largest first; empty if it was not worked out.
        undeclared: Those of them that change nothing because nothing is declared for them.
        suggestions: Slots for ``dynamic-suffix``.
        personal_data: Personal data in prefixes.
        expected: Expected hit rates; empty if they were not simulated.
        expected_note: What the simulation was based on.
        configuration: A configuration to start with, YAML.
    """

    verdict: Verdict
    read: LogRead
    requests: int
    prompt_tokens: int
    ideal: RepeatedTokens
    behind_changes: RepeatedTokens
    long_tokens: int
    long_prefixes: float
    long_prefix_tokens: float
    reported: ReportedHits | None
    prompts: Lengths
    shared_prefixes: Lengths
    intervals: list[RepeatInterval]
    interval_bars: list[tuple[float, float, float]]
    reasons: list[ReasonShare]
    ladder: list[dict[str, Any]]
    applications: list[ApplicationShare]
    sources: list[ApplicationShare]
    families: list[dict[str, Any]]
    findings: list[dict[str, Any]]
    rules: list[RuleGain]
    undeclared: list[str]
    suggestions: list[dict[str, Any]]
    personal_data: list[dict[str, Any]]
    expected: list[ExpectedHits]
    expected_note: str
    configuration: str
