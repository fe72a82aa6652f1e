"""A question in front of documents that were sent before."""

import pytest
from differing import chat, code, completion, difference

from gateway.canon.document_places import DocumentPlace
from gateway.config.document_order_settings import DocumentPlaceSettings
from gateway.explain.diff.question_first import asks_first
from gateway.explain.diff.slot import common_length

DOCUMENTS = [
    f"The {name} is described in the handbook of the harbour, together with its opening hours and its prices."
    for name in ("pier", "ferry", "lighthouse", "market")
]
SHUFFLED = [DOCUMENTS[2], DOCUMENTS[0], DOCUMENTS[3], DOCUMENTS[1]]


def asked(question, documents=DOCUMENTS, front=""):
    return "\n".join([f"{front}{question}", "", *documents])


def first(before, after, **given):
    return asks_first(before, after, common_length(before, after), **given)


@pytest.mark.parametrize("documents", [DOCUMENTS, SHUFFLED, SHUFFLED[:3]], ids=["same", "shuffled", "one less"])
@pytest.mark.parametrize("front", ["", "Question: ", "Answer from the documents.\nUser: "])
def test_a_question_in_front_of_documents(documents, front):
    before = asked("When can I visit the lighthouse?", front=front)
    assert first(before, asked("Do dogs travel free on the ferry?", documents, front))
    assert first(before, asked("When can I visit the ferry?", documents, front))


def test_a_question_without_a_mark_is_another_text():
    before = asked("Tell me everything about the lighthouse, please.")
    assert first(before, asked("Say in one word whether dogs travel free."))
    assert not first(before, asked("Tell me everything about the lighthouse, kindly."))
    assert not first(before, asked("Say in one word whether dogs travel free."), is_marked=True)
    assert first(asked("Is it open on 21 May?"), asked("Is it open on 22 May?"), is_marked=True)


@pytest.mark.parametrize(
    "opening", ['<document id="{n}">\n', "<doc>", "[{n}]\n", "## Section {n}\n", "# Documents\n\n<hit>\n", "3. Piers\n"]
)
@pytest.mark.parametrize("other", ["What is the fare to beta?", "Why?"])
def test_tags_numbers_and_headings_of_documents_are_no_part_of_the_question(opening, other):
    documents = [opening.format(n=n) + each for n, each in enumerate(DOCUMENTS, 1)]
    assert first(asked("What is the fare to alpha?", documents), asked(other, documents))
    assert first(asked("What is the fare to alpha?", documents), asked(other, documents), is_marked=True)
    assert not first(asked("The fare to alpha.", documents), asked("The fare to beta.", documents))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (asked("When?", DOCUMENTS[:1]), asked("Why?", DOCUMENTS[:1])),  # little
        (asked("When?"), asked("Why?", [f"{each} New edition." for each in DOCUMENTS])),  # other documents
        (asked("When?", DOCUMENTS[:3]), asked("Why?", [*DOCUMENTS[:3], *(f"New {each}" * 2 for each in DOCUMENTS)])),
        (asked("When?" * 300), asked("Why?" * 300)),  # a document itself
        (asked("", DOCUMENTS), asked("", SHUFFLED)),  # no question
        ("\n".join([*DOCUMENTS, "When?"]), "\n".join([*DOCUMENTS, "Why?"])),  # behind
    ],
)
def test_what_only_looks_like_it(before, after):
    assert not first(before, after)


def test_documents_between_declared_separators():
    place = DocumentPlace(DocumentPlaceSettings(name="hits", separator="%%", after="HITS", before="END"))
    before = f"When can I visit it? HITS {' %% '.join(DOCUMENTS)} END"
    after = f"Do dogs travel free? HITS {' %% '.join(SHUFFLED)} END"
    assert not first(before, after)
    assert first(before, after, places=(place,))


def both(before, after, **given):
    return code(difference(before, after, **given))


ONE, OTHER = asked("When can I visit the lighthouse?"), asked("Do dogs travel free on the ferry?")
HINTED = ("user_data", "question_first")


def test_in_questions_of_users_and_in_completions():
    system = ("system", "Be kind.")
    assert both(chat(system, ("user", ONE)), chat(system, ("user", OTHER)), same_conversation=False) == HINTED
    assert both(completion(ONE), completion(OTHER), same_conversation=False) == HINTED


def test_in_a_session_of_requests_without_history():
    assert both(chat(("user", ONE)), chat(("user", OTHER)), same_conversation=True) == HINTED


def test_questions_that_differ_in_a_date():
    one, other = (asked(f"Is the pier open on 2{day} May 2026?") for day in (1, 2))
    assert both(chat(("user", one)), chat(("user", other)), same_conversation=False) == HINTED
    one, other = (asked(f"Now: 2026-05-2{day}T10:00:00Z") for day in (1, 2))
    assert both(chat(("user", one)), chat(("user", other)), same_conversation=False)[0] == "dynamic_time"


def test_an_edited_history_is_no_question():
    rest = (("assistant", "On Sundays."), ("user", "And the pier?"))
    before, after = chat(("user", ONE), *rest), chat(("user", OTHER), *rest)
    assert both(before, after, same_conversation=True) == ("history_edited", "edited")


def test_documents_of_the_system_prompt_are_none_of_a_question():
    before, after = chat(("system", ONE), ("user", "Hi.")), chat(("system", OTHER), ("user", "Hi."))
    assert both(before, after, same_conversation=False) != HINTED


@pytest.mark.parametrize("same_conversation", [False, True])
@pytest.mark.parametrize("role", ["user", "system"])
def test_a_question_in_a_message_of_its_own(role, same_conversation):
    system = ("system", "Be kind.")
    for documents in (DOCUMENTS, SHUFFLED):
        before = chat(system, ("user", "Fare to alpha?"), (role, "\n".join(DOCUMENTS)))
        after = chat(system, ("user", "Do dogs travel free?"), (role, "\n".join(documents)))
        assert both(before, after, same_conversation=same_conversation) == HINTED


def test_documents_behind_an_answer_are_none_of_a_question():
    rest = (("assistant", "One moment."), ("user", "\n".join(DOCUMENTS)))
    before, after = (chat(("user", each), *rest) for each in ("Fare to alpha?", "Do dogs travel free?"))
    assert both(before, after, same_conversation=False) != HINTED


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("You advise visitors of the harbour, in two sentences.", "Du berätst Gäste des Hafens, in zwei Sätzen."),
        ("Summarize what the documents say.", "Translate all of it into Finnish, please."),
    ],
)
def test_instructions_at_the_beginning_of_a_prompt_are_no_question(one, other):
    before, after = (chat(("user", asked(each))) for each in (one, other))
    assert both(before, after, same_conversation=False) == ("user_data", "words")
    before, after = (completion(asked(each)) for each in (one, other))
    assert both(before, after, same_conversation=False) != HINTED
    for front in ("", "Use the documents.\n"):
        before, after = (chat(("user", asked(each, front=f"{front}Task: "))) for each in (one, other))
        assert both(before, after, same_conversation=False) == HINTED
    before, after = (chat(("system", "Be kind."), ("user", asked(each))) for each in (one, other))
    assert both(before, after, same_conversation=False) == HINTED
