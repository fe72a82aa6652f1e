"""Slow start: a replica that joins others gets its share little by little.

Its queue is empty and so is its cache. Without a ramp it would look like the best place for every cold prompt of the
whole fleet at once, and their prefills would stand in each other's way; connections and compiled kernels are cold, too.
No I/O, no clock.
"""

_FIRST = 1
"""Requests that it may have at once from the first moment on."""


def has_room(requests: int, seconds_up: float, ramp_seconds: float, others: list[int]) -> bool:
    """Whether a replica that came up some time ago may get one more request.

    Args:
        requests: What it has.
        seconds_up: Since when it is up.
        ramp_seconds: How long the ramp is; 0 for none.
        others: Requests in flight at each of the model's replicas that are past their ramp; without any there is none.
    """
    if seconds_up >= ramp_seconds or not others:
        return True
    share = seconds_up / ramp_seconds
    return requests < _FIRST + int(share * max(others))
