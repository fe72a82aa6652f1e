"""Checks of the settings alone: lifetimes of prefix spaces that have no effect. Pure."""

from collections.abc import Iterator

from gateway.config.settings import Settings
from gateway.evaluation.doctor.doctor_finding import DoctorFinding, Severity

_TIMES = ("idle_ttl_seconds", "max_age_seconds")


def lifetime_findings(settings: Settings) -> Iterator[DoctorFinding]:
    """Lifetimes (``…_ttl_seconds``, ``…_age_seconds``) that no space ever ends by."""
    spaces = settings.spaces
    if settings.isolation == "none":
        named = [f"spaces.{name}" for name in _TIMES if name in spaces.model_fields_set]
        named += [
            f"tenants[{number}].{name}"
            for number, tenant in enumerate(settings.tenants)
            for name in _TIMES
            if getattr(tenant, name) is not None
        ]
        if named:
            yield _without_effect(
                named[0],
                f"{', '.join(named)} {'has' if len(named) == 1 else 'have'} no effect: without isolation there is one "
                "prefix space, which does not end.",
                f"set spaces.isolation: tenant, or remove {' and '.join(named)}",
            )
        return
    if {"idle_ttl_seconds", "max_age_seconds"} & spaces.model_fields_set:
        yield from _never_idle("spaces", spaces.idle_ttl_seconds, spaces.max_age_seconds)
    for number, tenant in enumerate(settings.tenants):
        if tenant.idle_ttl_seconds is not None or tenant.max_age_seconds is not None:
            yield from _never_idle(
                f"tenants[{number}]",
                tenant.idle_ttl_seconds or spaces.idle_ttl_seconds,
                tenant.max_age_seconds or spaces.max_age_seconds,
            )
    yield from _differing_in_group(settings)


def _never_idle(place: str, idle: float, age: float) -> Iterator[DoctorFinding]:
    if idle >= age:
        yield _without_effect(
            f"{place}.idle_ttl_seconds",
            f"{place}.idle_ttl_seconds ({idle:g}) is not below max_age_seconds ({age:g}), which ends every space "
            "first.",
            f"set {place}.idle_ttl_seconds below {age:g}, or raise max_age_seconds",
        )


def _differing_in_group(settings: Settings) -> Iterator[DoctorFinding]:
    """Tenants of one group share spaces: each request sets their lifetimes anew."""
    if settings.isolation != "group":
        return
    first: dict[str, tuple[int, tuple[float, float]]] = {}
    for number, tenant in enumerate(settings.tenants):
        if not tenant.group:
            continue
        times = (
            tenant.idle_ttl_seconds or settings.spaces.idle_ttl_seconds,
            tenant.max_age_seconds or settings.spaces.max_age_seconds,
        )
        other, expected = first.setdefault(tenant.group, (number, times))
        if times != expected:
            yield _without_effect(
                f"tenants[{number}]",
                f"tenants[{other}] and tenants[{number}] share the spaces of group {tenant.group} and have different "
                "lifetimes: each request replaces those of the other.",
                f"give all tenants of group {tenant.group} the same idle_ttl_seconds and max_age_seconds",
            )


def _without_effect(where: str, said: str, fix: str) -> DoctorFinding:
    return DoctorFinding("ttl-without-effect", Severity.WARNING, where, said, fix)
