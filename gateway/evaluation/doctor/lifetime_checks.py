"""Checks of the settings alone: lifetimes of prefix spaces that have no effect. Pure."""

from collections.abc import Iterator

from gateway.config.settings import Settings
from gateway.evaluation.doctor.doctor_finding import DoctorFinding, Severity

_Times = tuple[float | None, float | None]
"""Idle time and maximum age in seconds; None for none."""


def lifetime_findings(settings: Settings) -> Iterator[DoctorFinding]:
    """Lifetimes (``…_ttl_seconds``, ``…_age_seconds``) that no space ever ends by."""
    idle, age = settings.spaces.lifetimes(isolated=settings.isolation != "none")
    yield from _never_idle("spaces", idle, age)
    for number, tenant in enumerate(settings.tenants):
        if tenant.idle_ttl_seconds is not None or tenant.max_age_seconds is not None:
            yield from _never_idle(f"tenants[{number}]", tenant.idle_ttl_seconds or idle, tenant.max_age_seconds or age)
    yield from _differing_in_group(settings, (idle, age))


def _never_idle(place: str, idle: float | None, age: float | None) -> Iterator[DoctorFinding]:
    if idle is not None and age is not None and idle >= age:
        yield _without_effect(
            f"{place}.idle_ttl_seconds",
            f"{place}.idle_ttl_seconds ({idle:g}) is not below max_age_seconds ({age:g}), which ends every space "
            "first.",
            f"set {place}.idle_ttl_seconds below {age:g}, or raise max_age_seconds",
        )


def _differing_in_group(settings: Settings, common: _Times) -> Iterator[DoctorFinding]:
    """Tenants of one group share spaces: each request sets their lifetimes anew."""
    if settings.isolation != "group":
        return
    first: dict[str, tuple[int, _Times]] = {}
    for number, tenant in enumerate(settings.tenants):
        if not tenant.group:
            continue
        times = (
            tenant.idle_ttl_seconds or common[0],
            tenant.max_age_seconds or common[1],
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
