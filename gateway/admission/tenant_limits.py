"""Usage of one tenant's limits, its refusals and rate-limit headers; and the limits of all tenants."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.admission.sliding_windows import Charge, RequestWindow, TokenWindow
from gateway.config.prompts_settings import PromptSettings
from gateway.config.tenants_settings import TenantSettings
from gateway.core.bounded_cache import BoundedCache
from gateway.core.errors import RateLimited

_CODE = "rate_limit_exceeded"
_REQUESTS, _TOKENS = "requests", "tokens"
_BUSY_RETRY_SECONDS = 1.0
"""Retry delay at the limit of concurrent requests, where the waiting time is unknown."""

_FLOAT_ERROR_SECONDS = 1e-9

_REFUSALS = 5, 5.0
"""Refused requests per number of seconds, of a tenant that may send less than one request a second, or has a limit of
tokens alone. A correct client rarely has one; reading five of the largest bodies takes about a second."""

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Limits:
    """A tenant's limits; None for no limit.

    Attributes:
        requests_per_second: Rate of requests; see ``window``.
        concurrent: Maximum number of running requests.
        prompt_tokens_per_minute: Maximum number of prompt tokens in any minute.
    """

    requests_per_second: float | None = None
    concurrent: int | None = None
    prompt_tokens_per_minute: int | None = None

    @classmethod
    def of(cls, entry: TenantSettings | PromptSettings) -> "Limits":
        """The limits in the settings of a tenant or of a prompt."""
        return cls(entry.requests_per_second, entry.concurrent, entry.prompt_tokens_per_minute)

    def window(self) -> tuple[int, float] | None:
        """The rate as a whole number of requests per number of seconds.

        50 yields 50 in 1 s, 2.5 yields 2 in 0.8 s, 0.5 yields 1 in 2 s.
        """
        rate = self.requests_per_second
        if rate is None:
            return None
        count = max(math.floor(rate), 1)
        return count, count / rate

    def refusals(self) -> tuple[int, float] | None:
        """Refused requests per number of seconds: as many as may be sent, and at least one a second."""
        rate = self.requests_per_second
        if rate is None and self.prompt_tokens_per_minute is None:
            return None
        return _REFUSALS if rate is None or rate < 1 else self.window()


class LimitUsage(NamedTuple):
    """Usage of a tenant at one gateway.

    Attributes:
        requests: Requests admitted since the gateway started, without those refused later.
        tokens: Prompt tokens charged since the gateway started.
        running: Admitted requests that have not ended.
    """

    requests: int = 0
    tokens: int = 0
    running: int = 0


class TenantLimits:
    """A tenant's limits and usage.

    Args:
        tenant: Its id, for messages.
        limits: Its limits.
        whose: What it is, for messages: a tenant, or an application, which is limited in the same way.

    Attributes:
        limited: Whether there is any limit.
        counts_tokens: Whether prompt tokens are limited.
        counts_requests: Whether requests a second are limited.
        running: See ``LimitUsage``; at this gateway.
        requests: See ``LimitUsage``; at this gateway.
        tokens: See ``LimitUsage``; at this gateway.
    """

    def __init__(self, tenant: str, limits: Limits, whose: str = "tenant") -> None:
        self._name = f"{whose} {tenant}"
        self.running = self.requests = self.tokens = 0
        self._running_elsewhere = 0
        self._elsewhere: dict[str, LimitUsage] = {}
        self._charged_elsewhere: Charge | None = None
        self._requests: RequestWindow | None = None
        self._refusals: RequestWindow | None = None
        self._tokens: TokenWindow | None = None
        self.change(limits)

    def change(self, limits: Limits) -> None:
        """Replace the limits. Usage is kept if there was a limit before and there still is one."""
        self._limits = limits
        tokens = limits.prompt_tokens_per_minute
        self.counts_tokens, self.counts_requests = tokens is not None, limits.requests_per_second is not None
        self.limited = limits != Limits()
        self._requests = _window(self._requests, limits.window())
        self._refusals = _window(self._refusals, limits.refusals())
        if tokens is None:
            self._tokens = None
        elif self._tokens is None:
            self._tokens = TokenWindow(tokens)
        else:
            self._tokens.limit = tokens

    def admit(self, now: float) -> None:
        """Count a request in the window. ``AllLimits.admit`` counts it as running.

        Raises:
            RateLimited: a limit is reached; nothing was counted.
        """
        concurrent = self._limits.concurrent
        if concurrent is not None and self.running + self._running_elsewhere >= concurrent:
            raise self._refusal(
                f"{self._name} may have {_counted(concurrent, 'request')} running at once (concurrent), and "
                "has. Try again when one of them is over.",
                _REQUESTS,
                _BUSY_RETRY_SECONDS,
                now,
            )
        requests, refusals, tokens = self._requests, self._refusals, self._tokens
        waits = (
            0.0 if requests is None else requests.wait_seconds(now),
            0.0 if refusals is None else refusals.wait_seconds(now),
            # Every prompt has a token. A length of a body says no more: it may be spaces, an image, unknown fields.
            0.0 if tokens is None else tokens.wait_seconds(1, now),
        )
        if (wait := max(waits)) > _FLOAT_ERROR_SECONDS:
            rate, of_tokens = self._limits.requests_per_second or 0, self._limits.prompt_tokens_per_minute or 0
            refused, seconds = self._limits.refusals() or _REFUSALS
            by = "requests_per_second" if rate else "prompt_tokens_per_minute"
            message = (
                f"may send {_counted(rate, 'request')} a second (requests_per_second)",
                f"may have {_counted(refused, 'request')} refused in {_duration(seconds)} ({by}), and had",
                f"may send {_counted(of_tokens, 'prompt token')} a minute (prompt_tokens_per_minute), and 0 are left",
            )[waits.index(wait)]
            kind = _TOKENS if wait == waits[2] else _REQUESTS
            raise self._refusal(f"{self._name} {message}. Try again in {_duration(wait)}.", kind, wait, now)
        if requests is not None:
            requests.admit(now)

    def charge(self, tokens: int, admitted: float | None, now: float) -> "TokenShare | None":
        """Count the tokens of a request's prompt; returns None without a token limit.

        Args:
            tokens: Number of tokens.
            admitted: Time at which the request was admitted; None if it no longer counts.
            now: Monotonic seconds.

        Raises:
            RateLimited: the tokens do not fit. They were not counted, and the request counts as refused only.
        """
        window = self._tokens
        if window is None:
            return None
        limit = window.limit
        fits = tokens <= limit
        wait = window.wait_seconds(tokens, now) if fits else None
        if wait == 0:
            self.tokens += tokens
            return TokenShare(self, window, window.charge(tokens, now), tokens)
        if admitted is not None:
            self.take_back(admitted, now)
        if wait is None:
            raise self._refusal(
                f"the prompt has {_counted(tokens, 'token')}, and {self._name} may send {limit} a minute "
                "(prompt_tokens_per_minute), so it can never pass. Send a shorter one.",
                _TOKENS,
                None,
                now,
            )
        raise self._refusal(
            f"{self._name} may send {_counted(limit, 'prompt token')} a minute (prompt_tokens_per_minute), "
            f"{window.remaining(now)[0]} are left, and the prompt has {tokens}. Try again in {_duration(wait)}.",
            _TOKENS,
            wait,
            now,
        )

    def take_back(self, admitted: float, refused: float | None) -> None:
        """Count a request no longer that was admitted at a time and refused later; it still runs until its release.

        ``refused`` is the time of the refusal, which counts instead; None: it does not count here.
        """
        self.requests -= 1
        if self._requests is not None:
            self._requests.take_back(admitted)
        if self._refusals is not None and refused is not None:
            self._refusals.admit(refused)

    @property
    def taken(self) -> LimitUsage:
        """Usage at this gateway."""
        return LimitUsage(self.requests, self.tokens, self.running)

    def count_elsewhere(self, gateway: str, taken: LimitUsage, now: float, *, counts: bool) -> None:
        """Count usage reported by another gateway.

        Args:
            gateway: Name of the other gateway.
            taken: The tenant's usage there.
            now: Monotonic seconds.
            counts: Whether to count the full usage of a first report about this tenant as recent; otherwise it is
                unknown when it was used, and only later increases count.
        """
        before = self._elsewhere.get(gateway, LimitUsage() if counts else taken)
        self._elsewhere[gateway] = taken
        self._running_elsewhere = sum(each.running for each in self._elsewhere.values())
        if self._requests is not None:
            for _ in range(min(taken.requests - before.requests, self._requests.count)):
                self._requests.admit(now)
        if self._tokens is None:
            return
        tokens = taken.tokens - before.tokens
        if tokens > 0:
            self._charged_elsewhere = self._tokens.charge(tokens, now)
        elif tokens < 0 and self._charged_elsewhere is not None:
            self._tokens.correct(self._charged_elsewhere, tokens)

    def drop_elsewhere(self, gateway: str) -> None:
        """Drop a gateway that no longer sends messages."""
        self._elsewhere.pop(gateway, None)
        self._running_elsewhere = sum(each.running for each in self._elsewhere.values())

    def headers(self, now: float) -> Headers:
        """OpenAI's rate-limit headers, for the limits that exist."""
        headers: Headers = []
        if self._requests is not None:
            remaining, reset = self._requests.remaining(now)
            headers += (
                (b"x-ratelimit-limit-requests", b"%d" % self._requests.count),
                (b"x-ratelimit-remaining-requests", b"%d" % remaining),
                (b"x-ratelimit-reset-requests", _duration(reset).encode("ascii")),
            )
        if self._tokens is not None:
            remaining, reset = self._tokens.remaining(now)
            headers += (
                (b"x-ratelimit-limit-tokens", b"%d" % self._tokens.limit),
                (b"x-ratelimit-remaining-tokens", b"%d" % remaining),
                (b"x-ratelimit-reset-tokens", _duration(reset).encode("ascii")),
            )
        return headers

    def _refusal(self, message: str, kind: str, wait: float | None, now: float) -> RateLimited:
        headers = [(name.decode("ascii"), value.decode("ascii")) for name, value in self.headers(now)]
        if wait is None:
            # OpenAI's clients retry every 429 without this header.
            headers.append(("x-should-retry", "false"))
        else:
            headers.append(("retry-after-ms", str(_milliseconds(wait))))
        return RateLimited(
            f"Rate limit reached: {message}", kind=kind, code=_CODE, retry_after_seconds=wait, headers=headers
        )


class TokenShare:
    """The tokens charged to one request.

    Args:
        limits: The tenant's limits.
        window: The window in which they count.
        charge: The charge that includes them.
        tokens: Number of tokens.
    """

    __slots__ = ("_charge", "_limits", "_tokens", "_window")

    def __init__(self, limits: TenantLimits, window: TokenWindow, charge: Charge, tokens: int) -> None:
        self._limits = limits
        self._window = window
        self._charge = charge
        self._tokens = tokens

    def correct(self, tokens: int) -> None:
        """Replace the number of tokens: none are returned that were not charged, or added beyond a whole limit."""
        tokens = min(max(tokens, 0), max(self._window.limit, self._tokens))
        self._window.correct(self._charge, tokens - self._tokens)
        self._limits.tokens += tokens - self._tokens
        self._tokens = tokens


def _window(window: RequestWindow | None, limit: tuple[int, float] | None) -> RequestWindow | None:
    """A window with another limit, in which what was counted still counts."""
    if window is None or limit is None:
        return None if limit is None else RequestWindow(*limit)
    window.change(*limit)
    return window


def _milliseconds(seconds: float) -> int:
    """Rounded up, so that a retry after this time is not too early; ignores floating-point errors."""
    return math.ceil(round(seconds * 1000, 6))


def _duration(seconds: float) -> str:
    """In OpenAI's format: ``20ms``, ``1s``, ``1.5s``, ``6m0s``, ``1h0m0s``."""
    milliseconds = _milliseconds(seconds)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{f'{hours}h' if hours else ''}{minutes}m{milliseconds / 1000:g}s"


def _counted(number: float, noun: str) -> str:
    return f"{number:.15g} {noun}{'' if number == 1 else 's'}"


MAX_UNLISTED = 10_000
"""Maximum number of idle tenants without a configuration entry whose counts are kept."""


class AllLimits:
    """Usage of the limits by tenant name.

    Args:
        listed: Limits of each tenant with a configuration entry.
        unlisted: Limits of each other tenant; None if there are no other tenants.
        max_unlisted: Number of idle other tenants to keep; the least recently used one is evicted, and its counts
            start at 0 again.
        whose: As in ``TenantLimits``.

    Attributes:
        touched: Tenants whose usage may have changed since the dictionary was last replaced; None if no replication
            reads it. Bounded, so it may be incomplete.
    """

    def __init__(
        self,
        listed: Mapping[str, Limits],
        unlisted: Limits | None,
        max_unlisted: int = MAX_UNLISTED,
        *,
        whose: str = "tenant",
    ) -> None:
        self._max_unlisted = max_unlisted
        self._whose = whose
        self._listed = {name: TenantLimits(name, limits, whose) for name, limits in listed.items()}
        self._unlisted = unlisted
        self._busy: dict[str, TenantLimits] = {}
        self._gone: dict[str, TenantLimits] = {}
        self._idle: BoundedCache[str, TenantLimits] = BoundedCache(max_unlisted)
        self.touched: dict[str, TenantLimits] | None = None

    def replace(self, listed: Mapping[str, Limits], unlisted: Limits | None) -> None:
        """Replace tenants and limits. A remaining tenant keeps its usage, with or without an entry."""
        former = {**self._gone, **dict(self._idle.items()), **self._busy, **self._listed}
        self._unlisted = unlisted
        self._listed = {
            name: _changed(former.pop(name, None), name, limits, self._whose) for name, limits in listed.items()
        }
        self._busy, self._gone = {}, {}
        self._idle.clear()
        if unlisted is None:
            # If such a tenant is configured again, its running requests still count.
            self._gone = {name: state for name, state in former.items() if state.running}
            return
        for name, state in former.items():
            state.change(unlisted)
            if state.running:
                self._busy[name] = state
            else:
                self._idle.put(name, state)

    def admit(self, name: str, now: float) -> TenantLimits:
        """Count a request of a tenant. Returns the tenant's usage.

        Raises:
            RateLimited: a limit is reached; nothing was counted.
        """
        known = self._listed.get(name) or self._busy.get(name)
        state = known or self._idle.pop(name) or TenantLimits(name, self._unlisted or Limits())
        if state.limited:
            try:
                state.admit(now)
            except BaseException:
                if known is None:
                    self._idle.put(name, state)
                raise
        if known is None:
            self._busy[name] = state
        state.running += 1
        state.requests += 1
        if self.touched is not None:
            self._touch(name, state)
        return state

    def known(self) -> Iterator[tuple[str, TenantLimits]]:
        """All known tenants with their usage."""
        for states in (self._listed, self._busy, self._idle):
            yield from states.items()

    def find(self, name: str) -> TenantLimits | None:
        """Usage of a tenant; None if there is no such tenant."""
        state = self._listed.get(name) or self._busy.get(name) or self._idle.peek(name)
        if state is None and self._unlisted is not None:
            state = TenantLimits(name, self._unlisted)
            self._idle.put(name, state)
        return state

    def release(self, name: str, state: TenantLimits) -> None:
        """End an admitted request."""
        state.running -= 1
        if self.touched is not None:
            self._touch(name, state)
        if not state.running and self._busy.get(name) is state:
            del self._busy[name]
            self._idle.put(name, state)

    def _touch(self, name: str, state: TenantLimits) -> None:
        touched = self.touched
        if touched is not None and state.limited and len(touched) < self._max_unlisted + len(self._listed):
            touched[name] = state


def _changed(state: TenantLimits | None, name: str, limits: Limits, whose: str) -> TenantLimits:
    if state is None:
        return TenantLimits(name, limits, whose)
    state.change(limits)
    return state
