"""Totals by day, tenant, model and application, kept for more than a year: what a tenant's month costs.

Days are those of UTC. Only whole numbers are kept, so a report can be reproduced exactly from the same totals.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from operator import add
from typing import NamedTuple, TypeVar

from gateway.core.application import prompt_id
from gateway.core.errors import BadRequest
from gateway.stats.label_limiter import OTHER
from gateway.stats.prices import NO_TOKEN_PRICES, ComputePrice, TokenPrices

_KEPT_DAYS = 400
_DAY_SECONDS = 86_400
_MILLION = 1_000_000
_EPOCH = date(1970, 1, 1)
_MAX_KEYS = 1000
"""Tenants times models times applications of one day with totals of their own: trusted proxies may name tenants."""

_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")


class DayKey(NamedTuple):
    """What is counted together.

    Attributes:
        day: Days since 1970-01-01, UTC.
        tenant: Id of the tenant, or ``(other)``.
        model: Id of the model.
        prompt: As in ``StatsKey``; days of earlier releases do not have it.
    """

    day: int
    tenant: str
    model: str
    prompt: str = ""

    @classmethod
    def at(cls, at: float, tenant: str, model: str, prompt: str) -> "DayKey":
        """The key of requests that ended at ``at``, Unix seconds."""
        return cls(int(at // _DAY_SECONDS), tenant, model, prompt)


DayTotal = tuple[int, int, int, int, int]
"""Totals of answered requests: their number; their prompt tokens; of these, tokens that were not computed again; prompt
tokens of requests whose cached tokens the engine reported; generated tokens, as far as engines report them."""

_FIGURES = ("requests", "prompt_tokens", "cached_tokens", "confirmed_tokens", "completion_tokens")
_Key = TypeVar("_Key")


def _add(totals: dict[_Key, DayTotal], key: _Key, total: DayTotal) -> None:
    requests, prompt_tokens, cached_tokens, confirmed_tokens, completion_tokens = map(
        add, totals.get(key, (0,) * 5), total
    )
    totals[key] = requests, prompt_tokens, cached_tokens, confirmed_tokens, completion_tokens


class DayTotals:
    """Totals by day, tenant, model and application."""

    def __init__(self) -> None:
        self._days: dict[int, dict[DayKey, DayTotal]] = {}

    def add(self, key: DayKey, total: DayTotal) -> None:
        """Add totals."""
        of_day = self._days.get(key.day)
        if of_day is None:
            self._days = {day: totals for day, totals in self._days.items() if day > key.day - _KEPT_DAYS}
            of_day = self._days[key.day] = {}
        if key not in of_day and len(of_day) >= _MAX_KEYS:
            key = key._replace(tenant=OTHER, prompt="")
        _add(of_day, key, total)

    def all(self) -> list[tuple[DayKey, DayTotal]]:
        """All of them."""
        return [each for of_day in self._days.values() for each in of_day.items()]


def report(
    totals: Iterable[tuple[DayKey, DayTotal]], arguments: Mapping[str, str], now: float, price: ComputePrice
) -> dict[str, object]:
    """What each tenant used in a month, JSON-ready.

    Args:
        totals: Totals of this gateway, and of others.
        arguments: ``month``, such as ``2026-11`` (default: the present one), and ``tenant`` and ``prompt``: only these.
        now: Unix seconds.
        price: Prices by model; those of ``""`` apply to models without their own.

    Raises:
        BadRequest: ``month`` is no month.
    """
    month = arguments.get("month") or f"{datetime.fromtimestamp(now, UTC):%Y-%m}"
    if not _MONTH.fullmatch(month):
        raise BadRequest("`month` must be a month such as 2026-11.", param="month", code="invalid_value")
    tenant, prompt = arguments.get("tenant"), arguments.get("prompt")
    sums: dict[tuple[str, str], DayTotal] = {}
    by_prompt: dict[tuple[str, str], DayTotal] = {}
    days: set[str] = set()
    for key, total in totals:
        date_of_day = (_EPOCH + timedelta(days=key.day)).isoformat()
        is_of_prompt = prompt in (None, key.prompt, prompt_id(key.prompt))
        if date_of_day[:7] == month and tenant in (None, key.tenant) and is_of_prompt:
            days.add(date_of_day)
            _add(sums, (key.tenant, key.model), total)
            if key.prompt:
                _add(by_prompt, (key.prompt, key.model), total)
    rows = list(_rows("tenant", sums, price.tokens))
    return {
        "month": month,
        "tenant": tenant,
        "prompt": prompt,
        "currency": price.currency,
        "days": len(days),
        "first_day": min(days, default=None),
        "last_day": max(days, default=None),
        "rows": rows,
        "by_prompt": list(_rows("prompt", by_prompt, price.tokens)),
        "total": _total(rows),
    }


def _rows(
    name: str, sums: Mapping[tuple[str, str], DayTotal], prices: Mapping[str, TokenPrices]
) -> Iterator[dict[str, int | float | str | None]]:
    for (value, model), total in sorted(sums.items()):
        price = prices.get(model) or prices.get("") or NO_TOKEN_PRICES
        spent, without_cache = _cost(total, total[2], price), _cost(total, 0, price)
        saved = None if spent is None or without_cache is None else round(without_cache - spent, 6)
        yield {name: value, "model": model, **dict(zip(_FIGURES, total, strict=True)), "cost": spent, "saved": saved}


def _cost(total: DayTotal, cached_tokens: int, prices: TokenPrices) -> float | None:
    """The price of some totals if so many tokens were cached; None without any price."""
    if prices == NO_TOKEN_PRICES:
        return None
    computed = (total[1] - cached_tokens) * (prices.prompt or 0)
    spent = computed + cached_tokens * (prices.cached or 0) + total[4] * (prices.completion or 0)
    return round(spent / _MILLION, 6)


def _total(rows: Sequence[Mapping[str, int | float | str | None]]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name in (*_FIGURES, "cost", "saved"):
        values = [value for row in rows if isinstance(value := row[name], int | float)]
        found[name] = round(sum(values), 6) if values or name not in ("cost", "saved") else None
    return found
