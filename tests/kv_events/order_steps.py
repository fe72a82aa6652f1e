"""Everything that can happen between an engine and the order machine, for property tests."""

from hypothesis import strategies as st
from kv_events.order_simulation import stored

from gateway.core.kv_events import AllBlocksCleared, BlockRemoved

events = st.one_of(
    st.integers(0, 5).map(stored),
    st.integers(0, 5).map(stored),
    st.integers(0, 5).map(lambda name: BlockRemoved([name])),
    st.just(AllBlocksCleared()),
)
numbers = st.integers(0, 3)


def steps(*, faults=True, damage=False, half_open=False):
    """Pairs of a step's name and its argument."""
    ways = [
        *[st.tuples(st.just("publish"), st.lists(events, min_size=1, max_size=2))] * 4,
        *[st.tuples(st.just("deliver"), st.just(0))] * 4,
    ]
    if not faults:
        return st.one_of(
            *ways,
            st.tuples(st.sampled_from(["probe", "settle"]), st.none()),
            st.tuples(st.just("duplicate"), st.just(0)),
        )
    ways += [
        st.tuples(st.just("deliver"), numbers),
        st.tuples(st.just("lose"), st.lists(events, min_size=1, max_size=2)),
        st.tuples(st.sampled_from(["duplicate", "drop", "hold_back"]), numbers),
        st.tuples(st.sampled_from(["connect", "disconnect", "settle", "let_go", "connect", "settle"]), st.none()),
        st.tuples(st.sampled_from(["serve", "serve", "answer", "answer", "fail_replay"]), st.none()),
        st.tuples(st.just("serve"), numbers),
        st.tuples(st.sampled_from(["probe", "retry", "tick", "restart_noticed", "set_clock_back"]), st.none()),
        st.tuples(st.just("silent"), st.booleans()),
        st.tuples(st.just("restart"), st.booleans()),
    ]
    if damage:
        ways.append(st.tuples(st.just("damage"), st.lists(events, min_size=1, max_size=2)))
    if half_open:
        ways.append(st.tuples(st.just("restart_silently"), st.booleans()))
    return st.one_of(ways)


def take(simulation, step):
    """Let one thing happen."""
    what, argument = step
    match what:
        case "publish" | "lose" | "damage":
            reported = said(simulation, argument)
            if reported:
                simulation.publish(*reported, lose=what == "lose", damage=what == "damage")
        case "restart":
            simulation.restart(clock_back=argument)
        case "restart_silently":
            simulation.restart(clock_back=argument, silently=True)
        case "silent":
            simulation.silent(mute=argument)
        case _ if argument is None:
            getattr(simulation, what)()
        case _:
            getattr(simulation, what)(argument)


def said(simulation, wanted):
    """Only what an engine would say: it removes what it holds."""
    held, reported = simulation.process.content.copy(), []
    for event in wanted:
        if isinstance(event, BlockRemoved):
            if not held[event.names[0]]:
                continue
            held[event.names[0]] -= 1
        elif isinstance(event, AllBlocksCleared):
            held.clear()
        else:
            held.update(event.names)
        reported.append(event)
    return reported


def end_faults(simulation, *, probe):
    """All failures are over, and a batch comes, or time for a probe."""
    simulation.let_go()
    simulation.connect()
    if simulation.half_open:
        simulation.disconnect()
        simulation.connect()
    simulation.settle()
    if probe and not simulation.muted:
        simulation.probe()
    else:
        simulation.publish(stored(0))
    simulation.settle()
    simulation.tick()
    simulation.settle()
    simulation.retry()
    simulation.settle()
