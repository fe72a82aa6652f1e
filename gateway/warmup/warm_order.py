"""The body of ``POST /admin/api/warm``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.config.warmup_settings import SLOWEST
from gateway.core.ids import ReplicaId
from gateway.warmup.declared import Declared, Malformed, declare, kind_of, replica_ids

_KEYS = ("prefixes", "declared", "replicas", "requests_per_second")


@dataclass(frozen=True, slots=True)
class WarmOrder:
    """An operator's order.

    Attributes:
        prefixes: The prefixes to send; None: those declared in the configuration.
        replicas: The replicas to warm up; None: all.
        requests_per_second: The rate; None: the configured one.
    """

    prefixes: list[Declared] | None
    replicas: frozenset[ReplicaId] | None
    requests_per_second: float | None


def parse_order(body: Mapping[str, object]) -> WarmOrder:
    """Parse an order, without checking that tenants, models and replicas exist.

    Raises:
        Malformed: the order is invalid.
    """
    for key in body:
        if key not in _KEYS:
            raise Malformed((key,), f"unknown key, expected one of {', '.join(_KEYS)}", "unknown_parameter")
    return WarmOrder(
        _prefixes(body), replica_ids(body.get("replicas"), ("replicas",)), _rate(body.get("requests_per_second"))
    )


def _prefixes(body: Mapping[str, object]) -> list[Declared] | None:
    if "declared" in body:
        if body["declared"] is not True:
            raise Malformed(("declared",), "can only be true")
        if "prefixes" in body:
            raise Malformed(("declared",), "cannot be combined with prefixes (remove one of them)", "conflict")
        return None
    entries = body.get("prefixes")
    if not isinstance(entries, list) or not entries:
        raise Malformed(("prefixes",), f"expected a list of prefixes, got {kind_of(entries)}", "invalid_type")
    prefixes = []
    for position, entry in enumerate(entries):
        try:
            prefixes.append(declare(entry))
        except Malformed as error:
            raise error.within("prefixes", position) from None
    return prefixes


def _rate(value: object) -> float | None:
    if value is None:
        return None
    usable = isinstance(value, int | float) and not isinstance(value, bool) and SLOWEST <= value < math.inf
    if not usable:
        raise Malformed(("requests_per_second",), f"expected a number, at least {SLOWEST}")
    assert isinstance(value, int | float)
    return float(value)
