import gc
import random
import tracemalloc
from array import array

import pytest
from msgspec.structs import replace
from reference_prompts import CODE, NOW, SUPPORT, assistant, chain, request, system, tokens, tool, user

from gateway.core.explanation import ReplyChoice
from gateway.explain.prompt_text import Message, PromptText
from gateway.explain.reference import Frames, References

MIB = 2**20


def kept(*requests, max_bytes=16 * MIB, ttl_seconds=3600.0):
    references = References(max_bytes, ttl_seconds)
    for each in requests:
        references.keep(each, each.at)
    return references


def found(references, asked):
    """What a request is compared with: its id, how it was chosen, whether it is of the same conversation."""
    answer = references.find(asked, asked.at)
    return answer and (answer.reference.request_id, answer.chosen_by, answer.same_conversation)


def with_reply_ids(asked):
    """The request with the ids of its reply, as an engine's answer has them."""
    (reply,) = asked.replies
    ids = tokens(PromptText((assistant(reply.text),)))
    return replace(asked, replies=(replace(reply, ids=ids),), chains=(chain(asked.ids + ids),))


def timed(time):
    return system(f"Current time: {time}\n{SUPPORT}")


# Sessions


def test_last_request_of_the_session():
    references = kept(
        request("a1", system(SUPPORT), user("Hi"), session="a"),
        request("b1", system(SUPPORT), user("Hi"), session="b"),
        request("a2", system(SUPPORT), user("Hi"), assistant("Hello"), user("Where is my bag?"), session="a"),
    )
    turn = [user("Hi"), assistant("Hello"), user("Where is my bag?"), assistant("In Oslo."), user("Why?")]
    assert found(references, request("a3", system(SUPPORT), *turn, session="a")) == ("a2", "session", True)
    assert found(references, request("b2", system(SUPPORT), user("Thanks"), session="b")) == ("b1", "session", True)


def test_session_is_found_with_any_changed_prompt():
    references = kept(request("a1", system(SUPPORT), user("Hi"), session="a"))
    assert found(references, request("a2", system(CODE), user("Look"), session="a")) == ("a1", "session", True)


def test_change_of_model_within_a_session_is_seen():
    first = [system(SUPPORT), user("Where is my bag?")]
    references = kept(
        request("a0", *first, model="large"),
        request("a1", *first, session="a", model="small"),
    )
    asked = request("a2", *first, assistant("In Oslo."), user("Why?"), session="a", model="large")
    assert found(references, asked) == ("a1", "session", True)


def test_branch_of_a_session_is_compared_with_its_own_past():
    task = [system(SUPPORT), user("Plan my trip"), assistant("I ask three colleagues.")]
    branches = [request(name, *task, user(f"You are {name}: look for {name}"), session="a") for name in "xyz"]
    references = kept(request("root", *task[:2], session="a"), *branches)
    asked = request("x2", *task, user("You are x: look for x"), assistant("Found."), user("Book"), session="a")
    assert found(references, asked) == ("x", "session", True)


@pytest.mark.parametrize("times", [("12:01", "12:02", "12:07"), ("12 : 0 1", "12 : 3 2", "12 : 3 7")])
def test_branch_of_a_session_is_found_behind_a_time_that_differs(times):
    x_time, y_time, time = times
    task = [user("Plan my trip"), assistant("I ask three colleagues.")]
    references = kept(
        request("x", timed(x_time), *task, user("Look for hotels near the harbour"), session="a"),
        request("y", timed(y_time), *task, user("Look for trains to the north"), session="a"),
    )
    asked = request("x2", timed(time), *task, user("Look for hotels near the harbour"), assistant("Two."), session="a")
    assert found(references, asked) == ("x", "session", True)


def test_helper_of_an_agent_is_compared_with_the_same_helper_of_another_session():
    references = kept(
        request("other", system(CODE), user("diff one"), session="b"),
        request("main", system(SUPPORT), user("Review this and tell me"), session="a"),
    )
    assert found(references, request("helper", system(CODE), user("diff two"), session="a")) == (
        "other",
        "skeleton",
        False,
    )


# Conversations without a session id


@pytest.mark.parametrize("reply", [None, "In Oslo."], ids=["reply unknown", "reply known"])
def test_growing_history_is_one_conversation(reply):
    first = [system(SUPPORT), user("Where is my bag?")]
    references = kept(
        request("a1", *first, reply=reply),
        request("b1", system(SUPPORT), user("Can I take a dog?")),
    )
    asked = request("a2", *first, assistant("In Oslo."), user("Why there?"))
    assert found(references, asked) == ("a1", "conversation", True)


def test_growing_history_behind_the_time_is_one_conversation():
    history = [user("Where is my bag?"), assistant("In Oslo."), user("Why there?")]
    references = kept(
        request("a1", timed("2026-11-21T12:00:01Z"), *history[:1]),
        request("a2", timed("2026-11-21T12:00:09Z"), *history),
        request("b1", timed("2026-11-21T12:00:10Z"), user("Can I take a dog?")),
    )
    asked = request("a3", timed("2026-11-21T12:01:00Z"), *history, assistant("A mistake."), user("Oh"))
    assert found(references, asked) == ("a2", "conversation", True)


def test_conversation_goes_on_under_another_system_prompt():
    first = user("Where is the bag that I checked in this morning at the counter for late arrivals?")
    reply = "It was put on a later flight by way of Oslo."
    references = kept(request("a1", system(SUPPORT), first, reply=reply))
    asked = request("a2", system(CODE), first, assistant(reply), user("Why?"))
    assert found(references, asked) == ("a1", "conversation", True)


def test_small_talk_alone_makes_no_conversation_of_two_applications():
    talk = [user("Hi"), assistant("Hello! How can I help you today?"), user("I have a question")]
    references = kept(request("b1", system(SUPPORT), *talk), request("a1", system(CODE), *talk))
    assert found(references, request("b2", system(SUPPORT), *talk)) == ("b1", "conversation", True)
    assert found(kept(request("a1", system(CODE), *talk)), request("b1", system(SUPPORT), *talk)) is None
    ends = [assistant("Great, anything else?"), user("no thanks")]
    long = [user(f"Question {n} about my parcel") for n in range(5)]
    references = kept(request("b1", system(SUPPORT), *long, *ends), request("a1", system(CODE), *talk, *ends))
    asked = request("b2", system(SUPPORT), *long[3:], *ends, user("Wait"))
    assert found(references, asked) == ("b1", "conversation", True)


def test_the_same_greeting_of_many_is_kept_for_each():
    references = kept(*(request(f"r{n}", system(SUPPORT), user("hi"), reply=f"Hello {n}.") for n in range(20)))
    assert len(references) == 20
    asked = request("now", system(SUPPORT), user("hi"), assistant("Hello 3."), user("My bag?"))
    assert found(references, asked)[1:] == ("conversation", True)


def test_reply_distinguishes_two_conversations_with_the_same_greeting():
    references = kept(
        request("ann", system(SUPPORT), user("hi"), reply="Hello Ann."),
        request("bob", system(SUPPORT), user("hi"), reply="Hello Bob."),
        request("cem", system(SUPPORT), user("hi"), reply="Hello Cem."),
    )
    asked = request("bob2", system(SUPPORT), user("hi"), assistant("Hello Bob."), user("My bag?"))
    assert found(references, asked) == ("bob", "conversation", True)


@pytest.mark.parametrize("summary", [[], [user("Summary of what was said so far: a bag was lost.")]])
def test_history_cut_in_front_is_one_conversation(summary):
    turns = [message for n in range(6) for message in (user(f"Question {n} on the bag"), assistant(f"Answer {n}"))]
    references = kept(
        request("a6", system(SUPPORT), *turns[:11], reply="Answer 5"),
        request("b1", system(SUPPORT), user("Can I take a dog?")),
    )
    asked = request("a7", system(SUPPORT), *summary, *turns[8:], user("Question 6"))
    assert found(references, asked) == ("a6", "conversation", True)


def test_history_cut_down_to_the_last_reply_is_one_conversation():
    reply = "Your bag is in Oslo, and it comes with the next plane."
    references = kept(with_reply_ids(request("a1", system(SUPPORT), user("Where is my bag?"), reply=reply)))
    asked = request("a2", system(SUPPORT), assistant(reply), user("When?"))
    assert found(references, asked) == ("a1", "conversation", True)


def test_edited_last_question_is_compared_with_what_was_asked_first():
    history = [system(SUPPORT), user("Where is my bag?"), assistant("In Oslo."), user("Why there?"), assistant("Hm.")]
    references = kept(
        request("a1", *history[:2], reply="In Oslo."),
        request("a2", *history[:4], reply="Hm."),
        request("a3", *history, user("When will it be here?")),
    )
    asked = request("a3 edited", *history, user("Who will bring it here?"))
    assert found(references, asked) == ("a2", "conversation", True)


def test_branch_is_compared_with_the_turn_it_continues():
    root = [system(SUPPORT), user("Plan my trip")]
    references = kept(request("root", *root), request("x", *root, assistant("I ask."), user("Look for hotels")))
    asked = request("y", *root, assistant("I ask."), user("Look for trains"))
    assert found(references, asked) == ("root", "conversation", True)


def test_question_edited_many_turns_back_is_compared_with_what_became_of_it():
    turns = [message for n in range(5) for message in (user(f"Question {n}"), assistant(f"Answer {n}"))]
    references = kept(
        *(request(f"a{n}", system(SUPPORT), *turns[: 2 * n + 1]) for n in range(5)),
        request("b1", system(SUPPORT), user("Can I take a dog?")),
    )
    asked = request("back", system(SUPPORT), *turns[:4], user("Question 2 in other words"))
    assert found(references, asked) == ("a4", "conversation", True)


def test_same_greeting_of_another_application_is_no_conversation():
    references = kept(request("a1", system(CODE), user("hi")))
    assert found(references, request("b1", system(SUPPORT), user("hi"), assistant("Hello"), user("My bag?"))) is None


def test_history_cut_behind_the_last_question_is_one_conversation():
    question, answer = user("Which of the two bags that I checked in is lost?"), "The blue one with the red strap."
    references = kept(
        with_reply_ids(request("a1", system(SUPPORT), user("One"), assistant("1"), question, reply=answer))
    )
    asked = request("a2", system(SUPPORT), question, assistant(answer), user("Three"))
    assert found(references, asked) == ("a1", "conversation", True)


def test_examples_in_front_make_no_conversation():
    examples = [user("Good film!"), assistant("positive"), user("Bad film!"), assistant("negative")]
    references = kept(request("one", system(SUPPORT), *examples, user("What a bore")))
    asked = request("two", system(SUPPORT), *examples, user("I laughed all evening"))
    assert found(references, asked) == ("one", "beginning", False)


def test_agent_with_cleared_tool_results_is_one_conversation():
    def step(n, result):
        return [assistant(f"I look into part {n}"), Message("tool", result)]

    references = kept(
        request("a2", system(CODE), user("Review"), *step(1, "long listing"), *step(2, "second listing")),
    )
    asked = request(
        "a3", system(CODE), user("Review"), *step(1, "cleared"), *step(2, "second listing"), *step(3, "third")
    )
    assert found(references, asked) == ("a2", "conversation", True)


def test_same_words_in_another_session_are_another_conversation():
    references = kept(request("a1", system(SUPPORT), user("hi"), session="a"))
    assert found(references, request("b1", system(SUPPORT), user("hi"), session="b")) == ("a1", "skeleton", False)


def test_new_session_id_with_every_request_still_leaves_the_reply_to_know_a_conversation_by():
    references = kept(request("a1", system(SUPPORT), user("My bag?"), reply="In Oslo.", session="s1"))
    asked = request("a2", system(SUPPORT), user("My bag?"), assistant("In Oslo."), user("Why?"), session="s2")
    assert found(references, asked) == ("a1", "conversation", True)


def test_completion_that_was_continued():
    story = "Once upon a time there was a gateway that knew which engine held which prompt. "
    references = kept(request("a1", Message("prompt", story)))
    assert found(references, request("a2", Message("prompt", story + "It was never wrong."))) == (
        "a1",
        "conversation",
        True,
    )


def test_completion_that_only_begins_alike_was_not_continued():
    story = "Once upon a time there was a gateway that knew which engine held which prompt. "
    references = kept(request("a1", Message("prompt", story + "It was tired.")))
    asked = request("a2", Message("prompt", story + "It was never wrong at all."))
    assert found(references, asked) == ("a1", "beginning", False)


# Prompts that begin alike, and skeletons


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("It is 2026-11-21T12:00:01Z.", "It is 2026-11-21T13:07:44Z."),
        ("It is Saturday, 21 November 2026.", "It is Monday, 4 May 2026."),
        ("Heute ist Samstag, der 21. November 2026.", "Heute ist Montag, der 4. Mai 2026."),
        ("Session: 3f2a9c7e-11d2-4b7a-9a51-abcdefabcdef", "Session: 0b1a9c7e-22d2-4b7a-9a51-fedcbafedcba"),
        ("Request req_8fa31 of order ORD-2026-17", "Request req_771bc of order ORD-2027-99123"),
        ("You help maria.lopez@example.com.", "You help bob@test.example."),
        ("Be  brief.\r\n\r\nBe kind.", "be brief.\nBe kind."),
        ("Say “yes” or “no”.", 'Say "yes" or "no".'),
    ],
)
def test_numbers_dates_ids_blanks_and_case_make_no_other_skeleton(before, after):
    references = kept(request("one", system(f"{before}\n{SUPPORT}"), user("Where is my bag?")))
    asked = request("two", system(f"{after}\n{SUPPORT}"), user("Can I take a dog?"))
    assert found(references, asked) == ("one", "skeleton", False)


def test_a_sentence_that_repeats_is_found_behind_a_time():
    rules = "You answer questions about parcels, invoices and returns, in one sentence each. " * 60
    references = kept(request("one", system(f"Time 1 2 : 0 1 {rules}"), user("My bag?")))
    asked = request("two", system(f"Time 1 3 : 0 2 {rules}"), user("A dog?"))
    assert found(references, asked)[:2] == ("one", "skeleton")


def test_two_applications_of_a_tenant_are_kept_apart():
    references = kept(
        request("support", system(SUPPORT), user("Where is my bag?")),
        request("code", system(CODE), user("diff --git a b")),
    )
    assert found(references, request("s", system(SUPPORT), user("A dog?"))) == ("support", "beginning", False)
    assert found(references, request("c", system(CODE), user("diff --git c d"))) == ("code", "beginning", False)
    assert found(kept(request("code", system(CODE), user("x"))), request("s", system(SUPPORT), user("y"))) is None


def test_tools_distinguish_applications_but_not_their_order():
    about = "finds what is free on the days that are given, and what it costs with all taxes"
    search, book = tool(f"search_flights {about}"), tool(f"book_hotel {about}")
    references = kept(
        request("one", user("To Oslo"), tools=[search, book]),
        request("two", user("To Rome"), tools=[tool("run_query"), tool("plot_chart")]),
    )
    assert found(references, request("three", user("To Bonn"), tools=[book, search])) == ("one", "skeleton", False)


def test_the_latest_is_preferred_and_other_models_are_not_compared():
    def asked(request_id, question, **fields):
        return request(request_id, system(SUPPORT), user(question), **fields)

    requests = [
        asked("old", "one", model="m", source="web"),
        asked("same both", "two", model="m", source="web"),
        asked("same model", "three", model="m", source="mobile"),
        asked("same source", "four", model="n", source="web"),
    ]
    asking = asked("now", "six", model="m", source="web")
    assert found(kept(*requests), asking)[0] == "same model"
    assert found(kept(*requests[:2]), asking)[0] == "same both"
    assert found(kept(*requests[3:]), asking) is None


def test_request_of_the_same_model_is_found_behind_many_later_ones():
    many = [request(f"m{n}", system(SUPPORT), user(f"Case {n}"), source="mobile", model="n") for n in range(40)]
    references = kept(request("web", system(SUPPORT), user("My bag?")), *many)
    assert found(references, request("now", system(SUPPORT), user("A dog?"))) == ("web", "beginning", False)


# Similar ones


@pytest.mark.parametrize(
    "changed",
    [
        SUPPORT.replace("five sentences", "three short sentences"),
        "\n".join(reversed(SUPPORT.splitlines())),
        SUPPORT.replace("Nordwind", "Südwind"),
    ],
)
def test_edited_system_prompt_is_similar(changed):
    references = kept(
        request("code", system(CODE), user("diff")),
        request("support", system(SUPPORT), user("A dog?")),
        request("code too", system(CODE), user("patch")),
    )
    assert found(references, request("now", system(changed), user("My bag?"))) == ("support", "similar", False)


def test_the_most_similar_is_chosen_and_not_another_tenants():
    lines = SUPPORT.splitlines()
    references = kept(
        request("some", system("\n".join([*lines[1:], "Be brief."])), user("A fox?")),
        request("most", system("\n".join([*lines, "Be kind."])), user("A dog?")),
        request("less", system("\n".join([*lines[:3], "Be kind."])), user("A cat?")),
        *(request(f"g{n}", system(f"{SUPPORT}\nBe {x}."), tenant="globex") for n, x in enumerate("abcdefghijklmnop")),
    )
    asked = request("now", system("\n".join([*lines, "Be patient."])), user("My bag?"))
    assert found(references, asked) == ("most", "beginning", False)


@pytest.mark.parametrize(
    "more", [[system("The client is a phone. Write no tables.")], [user("The customer is Maria Lopez from Valencia.")]]
)
def test_added_message_leaves_the_same_beginning(more):
    references = kept(request("web", system(SUPPORT), user("A dog?")))
    asked = request("mobile", system(SUPPORT), *more, user("My bag?"))
    assert found(references, asked) == ("web", "beginning", False)


def test_documents_behind_the_same_template_have_the_same_beginning():
    template = "Answer the question by the documents below, and say so if they do not hold the answer.\n\n"
    animals, rockets = "The fox is a small wild dog. " * 60, "Liquid oxygen boils at low temperatures. " * 60
    references = kept(request("one", user(f"{template}{animals}\n\nWhat is a fox?")))
    asked = request("two", user(f"{template}{rockets}\n\nWhen does oxygen boil?"))
    assert found(references, asked) == ("one", "beginning", False)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is the capital of France?", "What is the capital of Norway?"),
        ("Write a poem", "Write a function"),
        ("How do I cook rice?", "My car does not start, what can I do about it?"),
        ("3+4", "12+9"),
        ("Hi", "Hello"),
        ("Can you please tell me a story about a dog", "Can you please tell me how to file my taxes"),
    ],
)
def test_unrelated_short_questions_are_not_compared(one, other):
    assert found(kept(request("one", user(one))), request("two", user(other))) is None
    assert found(kept(request("one", Message("prompt", one))), request("two", Message("prompt", other))) is None


def test_prompt_without_text_is_compared_with_nothing():
    references = kept(request("one"), request("two", user("")))
    assert found(references, request("three")) is None
    assert found(references, request("four", Message("prompt", ""))) is None


def test_prompt_of_system_messages_alone_is_no_turn_of_those_that_follow():
    references = kept(request("warm", system(SUPPORT)), request("a1", system(SUPPORT), user("hi")))
    assert found(references, request("b1", system(SUPPORT), user("A dog?")))[1:] == ("beginning", False)
    assert found(kept(request("warm", system(SUPPORT))), request("b1", system(SUPPORT), user("hi")))[2] is False


def test_several_prompts_of_which_one_was_sent_alone_are_no_turn_of_it():
    story = Message("prompt", "Once upon a time there was a gateway that knew which engine held which prompt.")
    references = kept(request("one", story))
    assert found(references, request("both", story, Message("prompt", "Another one.")))[2] is False


def test_shared_front_is_found_as_long_as_anyone_sends_it():
    front = "The user is called {}.\n" + "\n".join(f"Rule {chr(97 + n)}: {SUPPORT}" for n in range(20))
    references = References(64 * MIB, 3600.0)
    for number in range(200):
        asked = request(f"r{number}", system(front.format("Alice")), user(f"{number}?"), at=NOW + 50 * number)
        references.find(asked, asked.at)
        references.keep(asked, asked.at)
    asked = request("now", system(front.format("Bob")), user("Where is it?"), at=NOW + 50 * 200)
    assert found(references, asked)[:2] == ("r199", "similar")


# Bounds


def test_never_another_tenant():
    turn = [system(SUPPORT), user("Where is my bag?")]
    references = kept(request("a1", *turn, session="s", tenant="acme", reply="In Oslo."))
    more = [*turn, assistant("In Oslo."), user("Why?")]
    assert found(references, request("b1", *more, session="s", tenant="globex")) is None
    assert found(references, request("a2", *more, session="s", tenant="acme")) == ("a1", "session", True)


def test_never_another_tenant_that_sends_the_same_id():
    turn = [system(SUPPORT), user("Where is my bag?")]
    references = kept(request("a1", *turn, tenant="acme"))
    # Bodies that are too long are left out; the first request is not kept.
    first, second = (replace(request("x", *turn, tenant=tenant), body=b"") for tenant in ("acme", "globex"))
    assert references.find(first, NOW).reference.request_id == "a1"
    assert references.find(second, NOW) is None


def test_what_a_session_sent_leaves_with_it():
    turn = [system(SUPPORT), user("Where is my bag?")]
    references = kept(replace(request("a1", *turn), conversation="a1"))
    alone = references.held_bytes
    more = request("a2", *turn, assistant("In Oslo."), user("secret " * 500), session="s")
    references.keep(replace(more, conversation="s"), NOW)
    references.forget_session("acme", "s")
    assert references.held_bytes == alone


def test_what_is_too_old_is_gone():
    references = kept(request("a1", system(SUPPORT), user("Hi"), session="s"), ttl_seconds=60)
    assert found(references, request("a2", system(SUPPORT), user("Hi"), session="s", at=NOW + 60))[0] == "a1"
    assert found(references, request("a2", system(SUPPORT), user("Hi"), session="s", at=NOW + 61)) is None
    assert (len(references), references.held_bytes) == (0, 0)


def varied(number, words=300):
    text = " ".join(f"word{number}x{word} and" for word in range(words))
    tools = [tool(f"tool{number % 7}")]
    fields = {"tools": tools, "session": f"s{number // 3}", "reply": f"Reply {number} " * 20, "at": NOW + number}
    return request(f"r{number}", system(f"{SUPPORT}\nCase {number} {text}"), user(f"{text} {number}"), **fields)


def test_memory_is_bounded_and_the_oldest_go_first():
    references = References(MIB, 1e9)
    for number in range(250):
        references.keep(varied(number), NOW + number)
        assert references.held_bytes <= MIB
    assert 20 < len(references) < 250
    assert references.find(varied(249), NOW + 250).reference.request_id == "r249"
    assert all(references.find(varied(number), NOW).reference.request_id != f"r{number}" for number in range(50))


def test_what_is_counted_is_what_is_taken():
    requests = [varied(number) for number in range(120)]
    frames = Frames(4 * MIB)
    for each in requests:
        # The cache of frames is no part of it.
        assert frames.of(each.text).features
    references = References(64 * MIB, 1e9, frames)
    gc.collect()
    tracemalloc.start()
    for each in requests:
        references.keep(replace(each, ids=each.ids + b"1234", body=(each.body + b" ")[:-1]), each.at)
    del requests, each
    references.forget_readings()
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.8 < references.held_bytes / taken < 1.25


def test_what_goes_leaves_nothing_behind():
    references = kept(*(varied(number) for number in range(50)), ttl_seconds=1000)
    assert references.find(request("now", user("Hi")), NOW + 5000) is None
    assert references.held_bytes == 0


def test_many_branches_of_a_long_prompt_are_bounded():
    numbers = random.Random(2).choices(range(100_000), k=10_000)
    references = References(8 * MIB, 1e9)
    task = [system(SUPPORT), user("Plan my trip")]
    gc.collect()
    tracemalloc.start()
    for number in range(400):
        branch = array("I", [*numbers, *([number] * 9 if number else [])]).tobytes()
        more = [assistant("I ask."), user(f"Branch {number}")] if number else []
        asked = replace(request(f"r{number}", *task, *more, at=NOW + number), ids=branch, chains=(chain(branch),))
        references.find(asked, asked.at)
        references.keep(asked, asked.at)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert references.held_bytes < 8 * MIB
    assert taken < 16 * MIB


def test_history_is_held_once():
    history = [message for n in range(50) for message in (user(f"{n} " * 500), assistant(f"{n} so " * 500))]
    references = References(64 * MIB, 1e9)
    sizes = []
    for turn in range(1, 50, 2):
        asked = request(f"r{turn}", system(SUPPORT), *history[:turn], at=NOW + turn)
        references.keep(replace(asked, ids=b""), asked.at)
        sizes.append(references.held_bytes)
    text_bytes = sum(len(message.text) for message in history[:49])
    assert sizes[-1] < 1.2 * text_bytes + 50_000
    assert len(references) == 2


def test_request_larger_than_an_eighth_of_the_memory_is_not_kept():
    references = References(MIB, 1e9)
    references.keep(request("small", system(SUPPORT), user("x" * 90_000), session="s"), NOW)
    references.keep(request("text", system(SUPPORT), user("x" * 140_000), session="s"), NOW)
    ids = random.Random(1).randbytes(140_000)
    references.keep(replace(request("ids", user("x"), session="s"), ids=ids), NOW)
    references.keep(replace(request("reply", user("x"), session="s"), replies=(ReplyChoice("x", bytes(140_000)),)), NOW)
    assert len(references) == 1
    assert found(references, request("now", user("Hi"), session="s"))[0] == "small"


@pytest.mark.parametrize(
    "text", ["1" * 10**6, "a@" * 10**5, "\n" * 10**5, "ab12-" * 10**5, "一" * 10**6, "\ud800 x" * 99]
)
def test_any_text_can_be_kept_and_found(text):
    for messages in ([system(text)], [user(text)], [system(text), user(text)]):
        references = kept(request("one", *messages), max_bytes=256 * MIB)
        assert references.find(request("two", *messages), NOW) is not None or not text.strip()


def test_agents_that_share_a_session_are_compared_each_with_itself():
    def turn(number, agent):
        return request(f"r{number}", system(f"Time 10:0{number}:00\n{agent}"), user(f"Step {number}"), session="s")

    references = kept(turn(0, SUPPORT), turn(1, CODE))
    assert found(references, turn(2, SUPPORT)) == ("r0", "session", True)
    assert found(references, turn(3, CODE)) == ("r1", "session", True)
