"""A timer that is set again and again, on a loop whose timers fire when the test says so."""

from gateway.lazy_timer import LazyTimer


class Loop:
    """A clock, and the last timer that was set."""

    def __init__(self):
        self.now = 0.0
        self.timers = 0
        self.due = None

    def time(self):
        return self.now

    def call_at(self, when, callback):
        self.timers += 1
        self.due = (when, callback)
        return self

    def cancel(self):
        self.due = None

    def fire(self, early=0.0):
        when, callback = self.due
        self.due = None
        self.now = when - early
        callback()


def timer(loop):
    over = []
    return LazyTimer(loop, lambda: over.append(loop.now)), over


def test_a_time_is_over():
    lazy, over = timer(loop := Loop())
    lazy.wait(5.0)
    loop.fire()
    assert (over, lazy.waits) == ([5.0], False)


def test_a_loop_that_rounds_does_not_fire_over_and_over():
    lazy, over = timer(loop := Loop())
    lazy.wait(5.0)
    loop.fire(early=0.0005)
    assert over == []
    assert loop.due[0] >= loop.now + 0.001
    loop.fire()
    assert (len(over), loop.timers) == (1, 2)
    assert over[0] >= 5.0


def test_a_later_time_leaves_the_timer_of_the_loop():
    lazy, over = timer(loop := Loop())
    lazy.wait(5.0)
    loop.now = 3.0
    lazy.wait(5.0)
    assert loop.timers == 1
    loop.fire()
    assert (over, loop.timers) == ([], 2)
    loop.fire()
    assert over == [8.0]


def test_an_earlier_time_takes_its_place():
    lazy, over = timer(loop := Loop())
    lazy.wait(5.0)
    lazy.wait(2.0)
    loop.fire()
    assert (over, loop.due) == ([2.0], None)
    lazy.wait(5.0)
    lazy.wait(1.0)
    loop.fire()
    assert (over, loop.due) == ([2.0, 3.0], None)


def test_a_time_that_was_stopped():
    lazy, over = timer(loop := Loop())
    lazy.wait(5.0)
    lazy.stop()
    loop.fire()
    assert (over, loop.due) == ([], None)


def test_a_timer_that_was_cancelled():
    lazy, over = timer(loop := Loop())
    lazy.wait(5.0)
    lazy.cancel()
    assert loop.due is None
    lazy.wait(5.0)
    assert (over, loop.due) == ([], None)
