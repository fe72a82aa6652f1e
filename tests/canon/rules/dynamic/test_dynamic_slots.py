"""Places of the operator's own."""

from moving import NOW, Conversation, block, chat, left, moved, rule

from gateway.canon.rule import RuleContext, applied
from gateway.config.canon_settings import SlotSettings


def _slot(regex, varies="conversation", **more):
    return SlotSettings(name="customer", regex=regex, varies=varies, **more)


def test_a_line_moves_as_a_whole_where_the_pattern_is_all_of_it():
    slots = [_slot(r"^Customer: (.+)$")]
    assert moved("Be nice.\nCustomer: Ann Lee\nBye.", slots=slots) == ["Customer: Ann Lee"]
    assert left("Be nice.\nCustomer: Ann Lee\nBye.", slots=slots) == "Be nice.\n[context 1]\nBye."


def test_only_the_group_moves_where_more_is_said():
    assert (
        left("You help customer Ann today.", slots=[_slot(r"customer (\w+) today")])
        == "You help customer [context 1] today."
    )
    assert left("Ticket T-1 is open.", slots=[_slot(r"T-\d+")]) == "Ticket [context 1] is open."


def test_the_operator_may_name_places_in_data():
    assert left("```\nseed = 4711\n```", slots=[_slot(r"seed = (\d+)")]) == "```\n[context 1]\n```"


def test_a_value_that_is_found_twice_moves_once():
    slots = [_slot(r"^Current time: (.+)$", "request"), _slot(r"2026-\d\d")]
    text = "Be nice.\nCurrent time: 2026-11-21 10:02"
    assert moved(text, slots=slots) == ["Current time: 2026-11-21 10:02"]


def test_groups_that_found_nothing_and_empty_values_stay():
    assert moved("Customer: Ann", slots=[_slot(r"Customer: (?:(\d+)|Ann)")]) == []
    assert moved("Customer: \n", slots=[_slot(r"^Customer:( *)$")]) == []


def test_other_models_are_left_alone():
    slots = [_slot(r"^Customer: (.+)$", models=("other",))]
    assert moved("Customer: Ann", slots=slots) == []
    assert moved("Customer: Ann", slots=[_slot(r"^Customer: (.+)$", models=("m",))]) == ["Customer: Ann"]


def test_what_the_pattern_would_find_again_in_what_stays_is_not_moved_again():
    slots = [_slot(r"(\w+)ly")]
    fields = chat("Hi", leading="Kindly [context 3]ly or badly")
    one = rule(slots=slots)
    after = applied(fields, one.detect(fields, RuleContext(NOW)).edits)
    assert after["messages"][0]["content"] == "[context 4]ly [context 3]ly or [context 5]ly"
    assert one.detect(after, RuleContext(NOW)).edits == ()


def test_another_customers_name_never_comes_into_an_earlier_turn():
    conversation = Conversation(slots=[_slot(r"^Customer: (.+)$")])
    conversation.send(chat("Hi", leading="Be nice.\nCustomer: Ann"))
    sent = conversation.send(chat("Hi", "Yes?", "So", leading="Be nice.\nCustomer: Bob"))
    assert sent[1]["content"] == "Hi"
    assert sent[3]["content"] == "So" + block("[context 1] Customer: Bob")


def test_a_value_of_several_lines_is_read_back_whole():
    conversation = Conversation(slots=[SlotSettings(name="notes", regex=r"Notes: (.+(?:\n.+)*)", varies="request")])
    text = "Be nice.\nNotes: one\ntwo\n\nBye."
    sent = conversation.send(chat("a", leading=text))
    assert sent[0]["content"] == "Be nice.\nNotes: [context 1]\n\nBye."
    assert sent[1]["content"] == "a" + block("[context 1] one\ntwo")
    assert conversation.send(chat("a", "b", "c", leading=text))[3]["content"] == "c"


def test_own_marks():
    fields = chat("Hi", leading="Current time: 2026-11-21 10:02")
    one = rule(pointer="<<{number}>>", opening="(now)", closing="(end)")
    system, user = applied(fields, one.detect(fields, RuleContext(NOW)).edits)["messages"]
    assert system["content"] == "<<1>>"
    assert user["content"] == "Hi\n\n(now)\n<<1>> Current time: 2026-11-21 10:02\n(end)"


def test_what_moves_along_with_a_value_of_the_conversation_is_never_of_another():
    """The pattern's group is the name alone, and the whole line moves."""
    conversation = Conversation(slots=[_slot(r"^Customer: (\w+), account .*$")])

    def asked(account, *said):
        return chat(*said, leading=f"Be nice.\nCustomer: Bob, account {account}")

    conversation.send(asked("DE11", "Hi"))
    sent = conversation.send(asked("DE22", "Hi", "Hello", "So?"))
    assert "DE11" not in str(sent)
    assert str(sent).count("DE22") == 1
