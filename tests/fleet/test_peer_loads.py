"""What connected gateways count of their requests: each once, for any metrics of the engine."""

from fleets import NOW, fleet
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.wiring import ReplicatedLoads
from gateway.core.engine_facts import EngineFacts, RankFacts


def look(replica, running=0, waiting=0, between=lambda: None):
    replica.begin_scrape()
    between()
    facts = EngineFacts(ranks=(RankFacts(rank=0, blocks=None, running=running, waiting=waiting),))
    replica.end_scrape(facts, NOW + 100)


def shared(of, freed=lambda model: None):
    return ReplicatedLoads(of, freed)


def send_loads(ours, theirs, name="peer", **options):
    reported = shared(ours).changes(NOW, everything=True)
    shared(theirs, **options).receive(name, reported, NOW)


def requests(of, name="a"):
    return of.find(name).load(0, NOW).requests


def test_load_is_reported_and_withdrawn():
    ours, theirs = fleet("ab"), fleet("ab")
    ticket = ours.find("a").dispatch(0, 700, NOW, 2)
    send_loads(ours, theirs)
    load = theirs.find("a").load(0, NOW)
    assert (load.requests, load.prefill_tokens) == (2, 700)
    assert requests(theirs, "b") == 0
    ticket.prefill_done(NOW)
    send_loads(ours, theirs)
    assert theirs.find("a").load(0, NOW).prefill_tokens == 0
    ticket.done(NOW)
    send_loads(ours, theirs)
    assert requests(theirs) == 0


def test_nothing_is_sent_twice_unless_all_is_asked_for():
    ours = fleet("a")
    loads = shared(ours)
    ours.find("a").dispatch(0, 10, NOW)
    assert loads.changes(NOW, everything=False) is not None
    assert loads.changes(NOW, everything=False) is None
    assert loads.changes(NOW, everything=True) is not None


def test_replicas_that_are_not_known_here_are_passed_over():
    ours, theirs = fleet("az"), fleet("ab")
    ours.find("z").dispatch(0, 10, NOW)
    send_loads(ours, theirs)
    assert [requests(theirs, name) for name in "ab"] == [0, 0]


def test_the_engine_counts_them_as_well_and_they_count_once():
    ours, theirs = fleet("a"), fleet("a")
    for _ in range(3):
        ours.find("a").dispatch(0, 10, NOW)
    send_loads(ours, theirs)
    theirs.find("a").dispatch(0, 10, NOW)
    look(theirs.find("a"), running=6)  # and two of other clients
    assert requests(theirs) == 3 + 1 + 2
    # It stays so as they go.
    send_loads(fleet("a"), theirs)
    assert requests(theirs) == 1 + 2


def test_what_was_sent_before_the_poll_and_received_after_it_counts_once():
    ours, theirs = fleet("a"), fleet("a")
    look(theirs.find("a"), running=3)  # one of another client
    for _ in range(2):
        ours.find("a").dispatch(0, 10, NOW)
    assert requests(theirs) == 3
    send_loads(ours, theirs)
    assert requests(theirs) == 3
    # What comes later was not there when the engine counted.
    ours.find("a").dispatch(0, 10, NOW)
    send_loads(ours, theirs)
    assert requests(theirs) == 4


def test_what_is_sent_during_the_look_counts_once():
    ours, theirs = fleet("a"), fleet("a")
    send_loads(ours, theirs)
    tickets = []

    def send():
        tickets.extend(ours.find("a").dispatch(0, 10, NOW) for _ in range(2))
        send_loads(ours, theirs)
        tickets.pop().done(NOW)
        send_loads(ours, theirs)

    look(theirs.find("a"), running=2, between=send)
    assert requests(theirs) == 1


def test_what_ended_during_the_look_counts_as_theirs():
    ours, theirs = fleet("a"), fleet("a")
    tickets = [ours.find("a").dispatch(0, 10, NOW) for _ in range(4)]
    send_loads(ours, theirs)

    def end():
        for ticket in tickets:
            ticket.done(NOW)
        send_loads(ours, theirs)

    look(theirs.find("a"), running=4, between=end)
    assert requests(theirs) == 0


def test_load_of_a_gateway_without_messages_comes_from_the_engine():
    ours, theirs = fleet("a"), fleet("a")
    for _ in range(3):
        ours.find("a").dispatch(0, 10, NOW)
    send_loads(ours, theirs)
    look(theirs.find("a"), running=3)
    assert requests(theirs) == 3
    shared(theirs).gone("peer", NOW)
    assert requests(theirs) == 3
    look(theirs.find("a"), running=0)
    assert requests(theirs) == 0


def test_a_request_waits_for_what_others_have_to_compute_there():
    ours, theirs = fleet("a"), fleet("a")
    ours.find("a").dispatch(0, 500, NOW)
    send_loads(ours, theirs)
    assert theirs.find("a").dispatch(0, 10, NOW).prefill_ahead == 500
    # When they began is not known here.
    assert theirs.find("a").load(0, NOW + 0.001).prefill_tokens >= 500


def test_waiting_requests_are_notified_when_another_gateway_has_less_in_flight():
    ours, theirs = fleet("ab"), fleet("ab")
    received = []
    tickets = [ours.find(name).dispatch(0, 500, NOW) for name in "ab"]
    send_loads(ours, theirs, freed=received.append)
    send_loads(ours, theirs, freed=received.append)
    assert received == []
    for ticket in tickets:
        ticket.prefill_done(NOW)
    send_loads(ours, theirs, freed=received.append)
    assert received == ["m"]
    tickets[0].done(NOW)
    send_loads(ours, theirs, freed=received.append)
    assert received == ["m", "m"]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["send", "end", "tell", "look"])), max_size=60),
    st.integers(0, 4),
)
def test_other_clients_are_never_counted_among_gateways_that_sent_all(steps, others):
    """With everything sent before and after a poll, exactly the other clients' requests are foreign."""
    fleets = [fleet("a") for _ in range(3)]
    tickets = [[], [], []]

    def send_all():
        for n, one in enumerate(fleets):
            for m, other in enumerate(fleets):
                if n != m:
                    send_loads(one, other, f"g{n}")

    for who, what in steps:
        if what == "send":
            tickets[who].append(fleets[who].find("a").dispatch(0, 10, NOW))
        elif what == "end" and tickets[who]:
            tickets[who].pop().done(NOW)
        elif what == "tell":
            send_all()
        elif what == "look":
            running = sum(len(each) for each in tickets) + others
            send_all()
            look(fleets[who].find("a"), running=running)
            send_all()
            assert requests(fleets[who]) == running
