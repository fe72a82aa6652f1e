import orjson
import pytest
from msgspec.structs import replace
from reference_prompts import CODE, NOW, SUPPORT, assistant, request, system, tool, user

from gateway.core.explanation import Difference
from gateway.core.reasons import Reason
from gateway.explain.diff import find_difference
from gateway.explain.reference import Families

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
        assert rows["mobile", "web"]["said"] == "mobile sends 1 message more at position 1 than web"
        assert rows["tv", "web"]["detail"] == "message_added"
        assert "television" not in str(rows)


def test_the_larger_family_is_what_the_other_is_compared_with():
    noted = families(("web", 2, [system(SUPPORT)], {}), ("mobile", 9, [system(SUPPORT), PHONE], {}))
    (row,) = noted.shown(NOW)
    assert (row["source"], row["than"], row["requests"]) == ("web", "mobile", 2)
    assert row["difference"]["said"] == "web sends 1 message less than mobile"


@pytest.mark.parametrize("names", [("web", "mobile"), ("mobile", "web")])
def test_of_two_families_that_send_as_much_the_one_with_more_messages_deviates(names):
    short, long = names
    noted = families((short, 4, [system(SUPPORT)], {}), (long, 4, [system(SUPPORT), PHONE], {}))
    assert [(row["source"], row["than"]) for row in noted.shown(NOW)] == [(long, short)]


TRAVEL = system("You plan trips by train.\nName every change and how long it takes.\nNever sell a ticket yourself.")
MENUS = system("You write menus.\nFour courses, one of them fish.\nNo prices, and no words in French.")
TERSE = system("Answer in one sentence, whatever was asked.")


def reported(noted):
    return {(row["source"], row["than"], row["requests"], row["difference"]["said"]) for row in noted.shown(NOW)}


def test_a_difference_stays_when_both_send_other_applications_more_often():
    noted = families(("web", 5, [system(SUPPORT)], {}), ("mobile", 5, [system(SUPPORT), PHONE], {}))
    before = reported(noted)
    assert before == {("mobile", "web", 5, "mobile sends 1 message more than web")}
    for application in (CODE, TRAVEL.text, MENUS.text):
        for n in range(50):
            for source in ("web", "mobile"):
                noted.note(request(f"{source}{n}", system(application), user(f"{n}"), source=source), NOW)
    assert reported(noted) == before


def test_differences_of_several_applications_are_reported_at_once():
    noted = families(
        ("web", 9, [system(SUPPORT)], {}),
        ("mobile", 5, [system(SUPPORT), PHONE], {}),
        ("web", 3, [system(CODE), TERSE], {}),
        ("mobile", 8, [system(CODE)], {}),
        ("web", 7, [TRAVEL], {}),
        ("mobile", 4, [TRAVEL, PHONE], {}),
        ("web", 6, [MENUS], {}),
        ("mobile", 6, [MENUS], {}),
    )
    assert reported(noted) == {
        ("mobile", "web", 5, "mobile sends 1 message more than web"),
        ("web", "mobile", 3, "web sends 1 message more than mobile"),
        ("mobile", "web", 4, "mobile sends 1 message more than web"),
    }


def test_a_similar_application_that_only_one_family_has_is_no_difference():
    both, own = [system(SUPPORT)], [system(f"{SUPPORT}\nWrite letters."), PHONE]
    noted = families(("web", 9, both, {}), ("mobile", 9, both, {}), ("mobile", 6, own, {}))
    assert noted.shown(NOW) == []


def test_the_most_similar_of_several_similar_applications_is_compared():
    other = system(SUPPORT.replace("Nordwind Travel", "Suedwind Cruises") + "\nCabins are booked on board only.")
    noted = Families(find_difference)
    for source, more in (("web", []), ("mobile", [PHONE])):
        for n in range(4):
            for text in (system(SUPPORT), other):
                noted.note(request(f"{n}", text, *more, user("?"), source=source), NOW)
    rows = noted.shown(NOW)
    assert {row["difference"]["said"] for row in rows} == {"mobile sends 1 message more at position 1 than web"}
    assert sum(row["requests"] for row in rows) == 8


def test_a_stray_request_in_the_others_way_does_not_hide_a_difference():
    web, mobile = [system(SUPPORT)], [system(SUPPORT), PHONE]
    noted = families(("web", 90, web, {}), ("mobile", 80, mobile, {}), ("mobile", 2, web, {}), ("web", 1, mobile, {}))
    assert reported(noted) == {("mobile", "web", 80, "mobile sends 1 message more than web")}
    often = families(("web", 90, web, {}), ("mobile", 80, mobile, {}), ("mobile", 9, web, {}))
    assert often.shown(NOW) == []


def test_texts_looked_up_for_each_request_make_no_family():
    def looked_up(n):
        return [system(f"{SUPPORT}\nFacts: {' '.join(chr(97 + n % 26) + chr(97 + k % 26) for k in range(8))}.")]

    sent = [("web", 1, looked_up(n), {}) for n in range(12)] + [("mobile", 1, looked_up(n), {}) for n in range(12, 24)]
    assert families(*sent).shown(NOW) == []


def asked(noted, source, *messages, times=5):
    for n in range(times):
        noted.note(request(f"{source}{n}", system(SUPPORT), *messages, user(f"Question {n}"), source=source), NOW)


def test_hidden_message_of_the_user_is_found_with_any_text():
    noted = Families(find_difference)
    asked(noted, "web")
    for n in range(5):
        asked(noted, "mobile", user(f"context: device ios{'abcde'[n]}, my name is Jo"), times=1)
    (row,) = noted.shown(NOW)
    assert (row["source"], row["than"], row["requests"]) == ("mobile", "web", 5)
    assert row["difference"]["said"] == "mobile sends 1 message more at position 1 than web"
    assert row["difference"]["reason"] == "system_changed"
    assert "ios" not in str(row)


def test_hidden_message_of_the_user_is_found_in_a_long_conversation():
    noted = Families(find_difference)
    asked(noted, "web", user("Hi"), assistant("Hello"), user("One thing"), assistant("Yes?"), user("And one more"))
    asked(noted, "mobile", user("context: ios"), user("Hi"), assistant("Hello"))
    assert [row["difference"]["said"] for row in noted.shown(NOW)] == [
        "mobile sends 1 message more at position 1 than web"
    ]


def test_two_questions_at_once_now_and_then_make_no_family():
    noted = Families(find_difference)
    asked(noted, "web", times=200)
    asked(noted, "mobile", times=5)
    asked(noted, "mobile", user("And this:"), times=200)
    asked(noted, "web", user("Oh, and"), user("no"), times=3)
    assert noted.shown(NOW) == []


@pytest.mark.parametrize(
    "behind",
    [
        [user("Hi"), assistant("Hello"), user("One thing"), user("no, two")],
        [assistant("How can I help?")],
        [assistant("How can I help?"), user("Hm."), user("Well.")],
    ],
    ids=["in the second turn", "greeting", "behind the greeting"],
)
def test_what_stands_behind_the_first_answer_makes_no_family(behind):
    noted = Families(find_difference)
    asked(noted, "web")
    asked(noted, "mobile", *behind)
    assert noted.shown(NOW) == []


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
    assert noted.held_bytes < 200_000


def test_variants_of_a_family_are_bounded_and_those_sent_often_stay():
    noted = families(("web", 9, [system(SUPPORT)], {}), ("mobile", 5, [system(SUPPORT), PHONE], {}))
    for n in range(400):
        words = " ".join(
            f"{'abcdefghij'[n % 10]}{'klmnopqrst'[n // 10 % 10]}{'uvwx'[n // 100]}{each}" for each in "pqrs"
        )
        noted.note(request(f"r{n}", system(words), source="web"), NOW)
    assert reported(noted) == {("mobile", "web", 5, "mobile sends 1 message more than web")}
    assert noted.held_bytes < 500_000


def test_variants_of_all_families_are_bounded():
    noted = Families(describe)
    for n in range(1_600):
        words = " ".join(
            f"{'abcdefghij'[n % 10]}{'klmnopqrst'[n // 10 % 10]}{'uvwxyzabcdefghij'[n // 100]}{e}" for e in "pq"
        )
        noted.note(request(f"r{n}", system(words), source=f"s{n % 50}"), NOW)
    assert noted.held_bytes < 2_500_000


def test_what_a_family_does_not_send_any_more_takes_no_memory():
    noted = Families(describe)
    for text in (SUPPORT, CODE, TRAVEL.text, MENUS.text):
        noted.note(request("r", system(text)), NOW)
    before = noted.held_bytes
    for _ in range(2):
        noted.note(request("r", system(SUPPORT)), NOW + 2 * HOUR)
    assert noted.held_bytes < before / 2


def test_documents_belong_to_the_question():
    noted = Families(find_difference)
    for source, more in (("web", []), ("mobile", [PHONE])):
        asking = request(source, system(SUPPORT), *more, user("?"), source=source)
        documents = orjson.dumps({"documents": [f"{source} {'x' * 1_000_000}"]})
        noted.note(replace(asking, body=asking.body[:-1] + b"," + documents[1:]), NOW)
    assert [row["difference"]["detail"] for row in noted.shown(NOW)] == ["message_added"]
    assert noted.held_bytes < 100_000


def test_families_and_variants_come_and_go():
    noted = Families(describe, max_bytes=400_000)
    texts = [f"{SUPPORT}\n{'abcdefghij'[n % 10]} {'klmnopq'[n % 7]} it is" for n in range(70)]
    for n in range(2_000):
        more = [user("context")] * (n % 4)
        asking = request("r", system(texts[n * n % 70]), *more, source=f"s{n * 7 % 83}", tenant=f"t{n % 3}")
        noted.note(asking, NOW + 11 * n)
        assert 0 < noted.held_bytes <= 400_000
        if n % 500 == 0:
            assert len(noted.shown(NOW + 11 * n)) <= 100


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
