from dataclasses import replace

import pytest
from reference_prompts import CODE, NOW, SUPPORT, assistant, request, system, tool, user

from gateway.settle.difference import find_difference
from gateway.settle.reference import Families
from gateway.values.explain import Difference
from gateway.values.reasons import Reason

HOUR = 3600.0
PHONE = system("The client is a phone. Write no tables.")


def describe(before, after, *, before_source, after_source, same_conversation, replies, tools_first):
    """Names messages that one has more; else that the text is another, or the time in it."""
    assert not same_conversation
    assert not replies
    more = len(after.messages) - len(before.messages)
    if more:
        said = f"{after_source} sends {abs(more)} message {'more' if more > 0 else 'less'} than {before_source}"
        return Difference(Reason.SYSTEM_CHANGED, "message_added", "messages[1]", said=said, before="Xx", after="Xx xx")
    if after.messages[0].text[:3] == before.messages[0].text[:3] == "For":
        return Difference(Reason.USER_DATA, "name", "messages[0].content")
    return Difference(Reason.SYSTEM_CHANGED, "edited", "messages[0].content", said="another text")


def families(*sent, **settings):
    """Each sent is: source, how often, messages; and fields of the request."""
    noted = Families(describe, **settings)
    for source, times, messages, fields in sent:
        for n in range(times):
            asked = request(f"{source}{n}", *messages, user(f"Question {n}"), source=source, **fields)
            noted.note(asked, asked.at)
    return noted


def test_hidden_message_of_one_client_is_found_and_named():
    noted = families(("web", 5, [system(SUPPORT)], {}), ("mobile", 3, [system(SUPPORT), PHONE], {}))
    assert noted.shown(NOW) == [
        {
            "tenant": "acme",
            "model": "m",
            "source": "mobile",
            "than": "web",
            "requests": 3,
            "difference": {
                "reason": "system_changed",
                "detail": "message_added",
                "path": "messages[1]",
                "said": "mobile sends 1 message more than web",
                "before": "Xx",
                "after": "Xx xx",
            },
        }
    ]


def test_hidden_message_is_found_behind_a_time_that_differs_in_every_request():
    def at(minute):
        return system(f"It is 12:{minute}.\n{SUPPORT}")

    noted = Families(find_difference)
    for n in range(5):
        noted.note(request(f"w{n}", at(10 + n), source="web"), NOW)
        noted.note(request(f"m{n}", at(20 + n), PHONE, source="mobile"), NOW)
    noted.note(request("t", at(33), system("Speak slowly, this is a television."), source="tv"), NOW)
    for _ in range(2):
        rows = {(row["source"], row["than"]): row["difference"] for row in noted.shown(NOW)}
        assert rows["web", "mobile"]["detail"] == "message_removed"
        assert rows["tv", "web"]["detail"] == "message_added"
        assert "television" not in str(rows)


def test_the_larger_family_is_what_the_other_is_compared_with():
    noted = families(("web", 2, [system(SUPPORT)], {}), ("mobile", 9, [system(SUPPORT), PHONE], {}))
    (row,) = noted.shown(NOW)
    assert (row["source"], row["than"], row["requests"]) == ("web", "mobile", 2)
    assert row["difference"]["said"] == "web sends 1 message less than mobile"


@pytest.mark.parametrize(
    "other",
    [
        [system(SUPPORT)],
        [system(f"{SUPPORT}  \n")],
        [system(CODE)],
        [],
        [assistant("Hello!")],
    ],
    ids=["same", "same but for blanks", "another application", "nothing in front", "a greeting"],
)
def test_families_that_send_the_same_or_something_else_altogether_do_not_differ(other):
    assert families(("web", 5, [system(SUPPORT)], {}), ("mobile", 3, other, {})).shown(NOW) == []


def test_times_make_no_family():
    def at(minute):
        return [system(f"It is 12:{minute}.\n{SUPPORT}")]

    noted = families(*((source, 2, at(n), {}) for n, source in enumerate(["web", "mobile", "web", "mobile"])))
    assert noted.shown(NOW) == []


def test_names_of_users_make_no_family():
    def of(name):
        return [system(f"For {name} only.\n{SUPPORT}")]

    noted = families(("web", 3, of("Maria Lopez"), {}), ("mobile", 2, of("Bob Jones"), {}))
    assert noted.shown(NOW) == []


def test_a_new_version_that_one_family_gets_first_is_no_difference():
    old, new = [system(SUPPORT)], [system(SUPPORT + "\nBe kind.")]
    noted = families(
        ("web", 9, old, {}),
        ("mobile", 5, old, {}),
        ("mobile", 8, new, {"at": NOW + 60}),
    )
    assert noted.shown(NOW + 60) == []


def test_what_was_sent_more_than_an_hour_ago_is_forgotten():
    old, new = [system(SUPPORT)], [system(SUPPORT), PHONE]
    noted = families(("web", 5, old, {}), ("mobile", 3, new, {}))
    assert len(noted.shown(NOW + HOUR - 600)) == 1
    assert noted.shown(NOW + HOUR + 600) == []
    later = families(
        ("web", 5, old, {}),
        ("mobile", 30, old, {}),
        ("web", 2, old, {"at": NOW + 2 * HOUR}),
        ("mobile", 1, new, {"at": NOW + 2 * HOUR}),
    )
    assert [row["requests"] for row in later.shown(NOW + 2 * HOUR)] == [1]


def test_tools_of_one_client_more_are_a_difference():
    tools = [tool("search"), tool("book")]
    noted = families(
        ("web", 5, [system(SUPPORT)], {"tools": tools}),
        ("mobile", 3, [system(SUPPORT)], {"tools": [*tools, tool("call")]}),
    )
    assert [row["source"] for row in noted.shown(NOW)] == ["mobile"]


def test_tenants_and_models_are_apart_and_can_be_asked_for():
    sent = []
    for tenant in ("acme", "globex"):
        for model in ("m", "n"):
            sent.append(("web", 5, [system(SUPPORT)], {"tenant": tenant, "model": model}))
            sent.append(("mobile", 3, [system(SUPPORT), PHONE], {"tenant": tenant, "model": model}))
    noted = families(*sent, ("tv", 1, [PHONE, system(SUPPORT)], {"tenant": "third"}))
    assert len(noted.shown(NOW)) == 4
    assert {row["model"] for row in noted.shown(NOW, model="n")} == {"n"}
    assert [(row["tenant"], row["model"]) for row in noted.shown(NOW, "n", "globex")] == [("globex", "n")]
    assert noted.shown(NOW, tenant="third") == []


def test_families_with_the_same_frame_are_compared_with_one_of_the_others():
    noted = families(
        ("web", 9, [system(SUPPORT)], {}),
        ("desktop", 8, [system(SUPPORT)], {}),
        ("phone", 5, [system(SUPPORT), PHONE], {}),
        ("tablet", 4, [system(SUPPORT), PHONE], {}),
    )
    assert [(row["source"], row["than"]) for row in noted.shown(NOW)] == [("phone", "web"), ("tablet", "web")]


def test_sources_are_bounded_and_those_used_most_stay():
    noted = families(
        ("web", 9, [system(SUPPORT)], {}),
        ("mobile", 5, [system(SUPPORT), PHONE], {}),
        *((f"script{n}", 1, [system(SUPPORT), PHONE, PHONE], {}) for n in range(300)),
    )
    rows = noted.shown(NOW)
    assert len(rows) <= 100
    assert ("mobile", "web") in [(row["source"], row["than"]) for row in rows]
    assert noted.held_bytes < 500_000


def test_memory_is_bounded():
    noted = Families(describe, max_bytes=300_000)
    for n in range(2_000):
        asked = request(f"r{n}", system(f"{SUPPORT} {'So it is. ' * 100}"), source="web", tenant=f"t{n}")
        noted.note(asked, NOW)
        assert noted.held_bytes <= 300_000
    for source, messages in (("web", [system(SUPPORT)]), ("mobile", [system(SUPPORT), PHONE])):
        noted.note(request(source, *messages, source=source, tenant="t1999"), NOW)
        noted.note(replace(request("huge", system("x" * 400_000), tenant="t1999"), source="huge"), NOW - 1)
    assert noted.held_bytes <= 300_000
