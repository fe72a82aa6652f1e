"""What gateways that know each other count of their requests: each once, whatever the engine's metrics say."""

from fleets import NOW, fleet
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.replicated_fleet import ReplicatedLoads
from gateway.core.engine_facts import EngineFacts, RankFacts


def look(replica, running=0, waiting=0, between=lambda: None):
    replica.begin_scrape()
    between()
    facts = EngineFacts(ranks=(RankFacts(rank=0, blocks=None, running=running, waiting=waiting),))
    replica.end_scrape(facts, NOW + 100)


def shared(of, freed=lambda model: None):
    return ReplicatedLoads(of, freed)


def tell(ours, theirs, name="peer", **options):
    told = shared(ours).changes(NOW, everything=True)
    shared(theirs, **options).receive(name, told, NOW)


def requests(of, name="a"):
    return of.find(name).load(0, NOW).requests


def test_load_is_told_and_taken_back():
    ours, theirs = fleet("ab"), fleet("ab")
    ticket = ours.find("a").dispatch(0, 700, 2)
    tell(ours, theirs)
    load = theirs.find("a").load(0, NOW)
    assert (load.requests, load.prefill_tokens) == (2, 700)
    assert requests(theirs, "b") == 0
    ticket.prefill_done()
    tell(ours, theirs)
    assert theirs.find("a").load(0, NOW).prefill_tokens == 0
    ticket.done()
    tell(ours, theirs)
    assert requests(theirs) == 0


def test_nothing_is_told_twice_unless_all_is_asked_for():
    ours = fleet("a")
    loads = shared(ours)
    ours.find("a").dispatch(0, 10)
    assert loads.changes(NOW, everything=False) is not None
    assert loads.changes(NOW, everything=False) is None
    assert loads.changes(NOW, everything=True) is not None


def test_replicas_that_are_not_known_here_are_passed_over():
    ours, theirs = fleet("az"), fleet("ab")
    ours.find("z").dispatch(0, 10)
    tell(ours, theirs)
    assert [requests(theirs, name) for name in "ab"] == [0, 0]


def test_the_engine_counts_them_as_well_and_they_count_once():
    ours, theirs = fleet("a"), fleet("a")
    for _ in range(3):
        ours.find("a").dispatch(0, 10)
    tell(ours, theirs)
    theirs.find("a").dispatch(0, 10)
    look(theirs.find("a"), running=6)  # and two of strangers
    assert requests(theirs) == 3 + 1 + 2
    # It stays so as they go.
    tell(fleet("a"), theirs)
    assert requests(theirs) == 1 + 2


def test_what_was_sent_before_the_look_and_heard_of_behind_it_counts_once():
    ours, theirs = fleet("a"), fleet("a")
    look(theirs.find("a"), running=3)  # one of a stranger
    for _ in range(2):
        ours.find("a").dispatch(0, 10)
    assert requests(theirs) == 3
    tell(ours, theirs)
    assert requests(theirs) == 3
    # What comes later was not there when the engine counted.
    ours.find("a").dispatch(0, 10)
    tell(ours, theirs)
    assert requests(theirs) == 4


def test_what_is_sent_during_the_look_counts_once():
    ours, theirs = fleet("a"), fleet("a")
    tell(ours, theirs)
    tickets = []

    def send():
        tickets.extend(ours.find("a").dispatch(0, 10) for _ in range(2))
        tell(ours, theirs)
        tickets.pop().done()
        tell(ours, theirs)

    look(theirs.find("a"), running=2, between=send)
    assert requests(theirs) == 1


def test_what_ended_during_the_look_counts_as_theirs():
    ours, theirs = fleet("a"), fleet("a")
    tickets = [ours.find("a").dispatch(0, 10) for _ in range(4)]
    tell(ours, theirs)

    def end():
        for ticket in tickets:
            ticket.done()
        tell(ours, theirs)

    look(theirs.find("a"), running=4, between=end)
    assert requests(theirs) == 0


def test_of_one_that_is_not_heard_any_more_the_engine_tells():
    ours, theirs = fleet("a"), fleet("a")
    for _ in range(3):
        ours.find("a").dispatch(0, 10)
    tell(ours, theirs)
    look(theirs.find("a"), running=3)
    assert requests(theirs) == 3
    shared(theirs).gone("peer", NOW)
    assert requests(theirs) == 3
    look(theirs.find("a"), running=0)
    assert requests(theirs) == 0


def test_a_request_waits_for_what_others_have_to_compute_there():
    ours, theirs = fleet("a"), fleet("a")
    ours.find("a").dispatch(0, 500)
    tell(ours, theirs)
    assert theirs.find("a").dispatch(0, 10).prefill_ahead == 500


def test_who_waits_here_hears_when_another_has_less_to_do_there():
    ours, theirs = fleet("ab"), fleet("ab")
    heard = []
    tickets = [ours.find(name).dispatch(0, 500) for name in "ab"]
    tell(ours, theirs, freed=heard.append)
    tell(ours, theirs, freed=heard.append)
    assert heard == []
    for ticket in tickets:
        ticket.prefill_done()
    tell(ours, theirs, freed=heard.append)
    assert heard == ["m"]
    tickets[0].done()
    tell(ours, theirs, freed=heard.append)
    assert heard == ["m", "m"]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["send", "end", "tell", "look"])), max_size=60),
    st.integers(0, 4),
)
def test_strangers_are_never_counted_among_gateways_that_have_told_all(steps, strangers):
    """With everything told before and behind a look, exactly the strangers' requests are foreign."""
    fleets = [fleet("a") for _ in range(3)]
    tickets = [[], [], []]

    def all_told():
        for n, one in enumerate(fleets):
            for m, other in enumerate(fleets):
                if n != m:
                    tell(one, other, f"g{n}")

    for who, what in steps:
        if what == "send":
            tickets[who].append(fleets[who].find("a").dispatch(0, 10))
        elif what == "end" and tickets[who]:
            tickets[who].pop().done()
        elif what == "tell":
            all_told()
        elif what == "look":
            running = sum(len(each) for each in tickets) + strangers
            all_told()
            look(fleets[who].find("a"), running=running)
            all_told()
            assert requests(fleets[who]) == running
