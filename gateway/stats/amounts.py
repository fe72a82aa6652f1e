"""Amounts of computing in words."""

from gateway.stats.stats_limits import ComputePrice

DAY_SECONDS = 86400.0

_SHORTEST_SECONDS = 60.0


def per_day(amount: float, covered_seconds: float) -> float | None:
    """What an amount comes to in a day, if it goes on so; None where too little time is covered to say."""
    return amount * DAY_SECONDS / covered_seconds if covered_seconds >= _SHORTEST_SECONDS else None


def gpu_time(gpu_seconds: float) -> str:
    """GPU seconds as people say it."""
    if gpu_seconds >= 3600:
        return f"{_number(gpu_seconds / 3600)} GPU hours"
    if gpu_seconds >= 60:
        return f"{_number(gpu_seconds / 60)} GPU minutes"
    return f"{_number(gpu_seconds)} GPU seconds"


def costs(gpu_seconds: float, covered_seconds: float, price: ComputePrice) -> str:
    """What something costs a day, or has cost where too little time is covered to say."""
    daily = per_day(gpu_seconds, covered_seconds)
    shown = gpu_seconds if daily is None else daily
    money = price.of(shown)
    told = gpu_time(shown) + ("" if money is None else f" ({_money(money)} {price.currency})")
    return f"costs {told} a day" if daily is not None else f"cost {told} in {covered_seconds:.0f} s"


def _money(value: float) -> str:
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.2g}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"
