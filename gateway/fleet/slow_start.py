"""Slow start: a new replica gets a share of the requests that grows over a ramp.

Its queue and its cache are empty. Without a ramp it would be the cheapest target for every cold prompt of the whole
fleet at once, and their prefills would queue up; connections and compiled kernels are cold, too.
No I/O, no clock.
"""

_FIRST = 1
"""Concurrent requests allowed from the start."""


def has_room(requests: int, seconds_up: float, ramp_seconds: float, others: list[int]) -> bool:
    """Whether a replica that came up some time ago may get one more request.

    Args:
        requests: Its requests in flight.
        seconds_up: Time since it came up.
        ramp_seconds: How long the ramp is; 0 for none.
        others: Requests in flight at each of the model's replicas that are past their ramp; without any there is no
            ramp.
    """
    if seconds_up >= ramp_seconds or not others:
        return True
    share = seconds_up / ramp_seconds
    return requests < _FIRST + int(share * max(others))
