"""Blocks of earlier turns stand where they were, so that a conversation's prompt only grows."""

from moving import NOW, OPENING, Talk, block, chat


def _clock(time, more=""):
    return f"You are Eva.\nCurrent time: 2026-11-21 {time}{more}"


def test_a_later_turn_begins_with_what_the_earlier_one_was():
    talk = Talk()
    first = talk.send(chat("a", leading=_clock("10:02")))
    assert not talk.last.context_lost
    second = talk.send(chat("a", "b", "c", leading=_clock("10:05")))
    assert second[:2] == first
    assert second[3]["content"] == "c" + block("[context 1] Current time: 2026-11-21 10:05")
    third = talk.send(chat("a", "b", "c", "d", "e", leading=_clock("10:09")))
    assert third[:4] == second
    assert [edit.what for edit in talk.last.edits] == ["moved", "restored", "restored", "added"]


def test_what_did_not_change_is_not_repeated_and_what_comes_back_is():
    talk = Talk()
    talk.send(chat("a", leading=_clock("10:02", "\nUser ID: 42")))
    second = talk.send(chat("a", "b", "c", leading=_clock("10:02", "\nUser ID: 42")))
    assert second[3]["content"] == "c"
    third = talk.send(chat("a", "b", "c", "d", "e", leading=_clock("10:05", "\nUser ID: 42")))
    assert third[5]["content"] == "e" + block("[context 1] Current time: 2026-11-21 10:05")
    assert third[:4] == second
    fourth = talk.send(chat("a", "b", "c", "d", "e", "f", "g", leading=_clock("10:02", "\nUser ID: 42")))
    assert fourth[7]["content"] == "g" + block("[context 1] Current time: 2026-11-21 10:02")
    assert fourth[:6] == third


def test_a_turn_tried_again_counts_as_it_was_tried_last():
    talk = Talk()
    talk.send(chat("a", leading=_clock("10:02")))
    talk.send(chat("a", "b", "c", leading=_clock("10:05")))
    again = talk.send(chat("a", "b", "c", leading=_clock("10:06")))
    later = talk.send(chat("a", "b", "c", "d", "e", leading=_clock("10:09")))
    assert later[:4] == again


def test_a_turn_tried_again_that_needs_no_block_forgets_its_first_one():
    talk = Talk()
    talk.send(chat("a", leading=_clock("10:02")))
    talk.send(chat("a", "b", "c", leading=_clock("10:05")))
    again = talk.send(chat("a", "b", "c", leading=_clock("10:02")))
    assert again[3]["content"] == "c"
    later = talk.send(chat("a", "b", "c", "d", "e", leading=_clock("10:09")))
    assert later[:4] == again


def test_tool_loops_grow_as_well():
    talk = Talk()
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "4"}
    first = talk.send(chat("a", leading=_clock("10:02")))
    second_fields = chat("a", leading=_clock("10:03"))
    second_fields["messages"] += [call, result]
    second = talk.send(second_fields)
    assert second[:2] == first
    assert second[2] is call
    assert second[3]["content"] == "4" + block("[context 1] Current time: 2026-11-21 10:03")
    third_fields = chat("a", leading=_clock("10:04"))
    third_fields["messages"] += [call, result, call, result]
    assert talk.send(third_fields)[:4] == second


def test_an_answer_begun_by_the_client_stays_last():
    talk = Talk()
    sent = talk.send(chat("a", "Sure", leading=_clock("10:02")))
    assert sent[1]["content"] == "a" + block("[context 1] Current time: 2026-11-21 10:02")
    assert sent[2] == {"role": "assistant", "content": "Sure"}
    assert talk.send(chat("a", "Sure, here", "b", leading=_clock("10:05")))[:2] == sent[:2]


def test_a_forgotten_conversation_goes_on_and_says_so():
    talk = Talk()
    talk.send(chat("a", leading=_clock("10:02")))
    talk.memory.clear()
    sent = talk.send(chat("a", "b", "c", leading=_clock("10:05")))
    assert talk.last.context_lost
    assert sent[1]["content"] == "a"
    assert sent[3]["content"] == "c" + block("[context 1] Current time: 2026-11-21 10:05")
    talk.send(chat("a", "b", "c", "d", "e", leading=_clock("10:09")))
    assert not talk.last.context_lost


def test_no_tenant_gets_the_blocks_of_another():
    talk = Talk()
    talk.send(chat("a", leading=_clock("10:02")), owner="acme")
    sent = talk.send(chat("a", "b", "c", leading=_clock("10:05")), owner="other")
    assert sent[1]["content"] == "a"
    assert talk.last.context_lost


def test_values_that_belong_to_a_conversation_keep_it_apart():
    talk = Talk()
    talk.send(chat("a", leading=_clock("10:02", "\nSession ID: s1")))
    sent = talk.send(chat("a", "b", "c", leading=_clock("10:05", "\nSession ID: s2")))
    assert sent[1]["content"] == "a"
    talk.send(chat("a", leading=_clock("10:02", "\nSession ID: s1")))
    sent = talk.send(chat("a", "b", "c", leading=_clock("10:05", "\nSession ID: s1")))
    assert "s1" in sent[1]["content"]


def test_values_that_belong_to_a_request_do_not():
    talk = Talk()
    first = talk.send(chat("a", leading=_clock("10:02", "\nRequest ID: r1")))
    assert talk.send(chat("a", "b", "c", leading=_clock("10:05", "\nRequest ID: r2")))[:2] == first


def test_marks_of_other_vendors_caches_may_move():
    talk = Talk()
    marked = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]
    first = talk.send(chat(marked, leading=_clock("10:02")))
    sent = talk.send(chat([{"type": "text", "text": "a"}], "b", "c", leading=_clock("10:05")))
    assert sent[1]["content"][1:] == first[1]["content"][1:]


def test_a_block_of_other_settings_comes_back_as_it_was():
    talk = Talk()
    talk.send(chat("a", leading=_clock("10:02")))
    talk.memory = {key: "(time: 10:02)" if kept.startswith(OPENING) else kept for key, kept in talk.memory.items()}
    sent = talk.send(chat("a", "b", "c", leading=_clock("10:05")))
    assert sent[1]["content"] == "a\n\n(time: 10:02)"


def test_texts_no_utf8_can_hold_and_numbers_beyond_64_bits_have_keys():
    talk = Talk()
    first = talk.send(chat("a\ud800", leading=_clock("10:02")))
    assert talk.send(chat("a\ud800", "b", "c", leading=_clock("10:05")))[:2] == first
    odd = chat("a", leading=_clock("10:02"))
    odd["messages"][1]["weight"] = 2**70
    assert talk.send(odd, now=NOW)[0]["content"] == "You are Eva.\n[context 1]"


def test_so_may_marks_of_a_whole_message():
    talk = Talk()
    marked = chat("a", leading=_clock("10:02"))
    marked["messages"][1]["cache_control"] = {"type": "ephemeral"}
    first = talk.send(marked)
    sent = talk.send(chat("a", "b", "c", leading=_clock("10:05")))
    assert sent[1]["content"] == first[1]["content"]


def test_conversations_that_begin_alike_keep_what_is_their_own():
    """Both say "hi" first, a minute apart; from where they differ on, neither takes the other one's place."""
    talk = Talk()
    talk.send(chat("hi", leading=_clock("10:02")))
    talk.send(chat("hi", leading=_clock("10:03")))
    ann = talk.send(chat("hi", "hello", "I am Ann", leading=_clock("10:04")))
    bob = talk.send(chat("hi", "hello", "I am Bob", leading=_clock("10:05")))
    talk.send(chat("hi", leading=_clock("10:06")))
    assert talk.send(chat("hi", "hello", "I am Ann", "yes", "so?", leading=_clock("10:07")))[:4] == ann
    assert not talk.last.context_lost
    assert talk.send(chat("hi", "hello", "I am Bob", "yes", "so?", leading=_clock("10:08")))[:4] == bob


def test_a_part_that_was_forgotten_is_reported():
    talk = Talk()
    talk.send(chat("a", leading=_clock("10:02")))
    first = dict(talk.memory)
    talk.send(chat("a", "b", "c", leading=_clock("10:05")))
    talk.memory = first
    sent = talk.send(chat("a", "b", "c", "d", "e", leading=_clock("10:07")))
    assert talk.last.context_lost
    assert sent[1]["content"] == "a" + block("[context 1] Current time: 2026-11-21 10:02")
    assert sent[3]["content"] == "c"
    assert sent[5]["content"] == "e" + block("[context 1] Current time: 2026-11-21 10:07")


def test_tools_that_answer_at_once_are_no_turns():
    talk = Talk()
    asked = chat("a", leading=_clock("10:02"))
    first = talk.send(asked)
    calls = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}, {"id": "2"}]}
    results = [{"role": "tool", "content": str(n), "tool_call_id": str(n)} for n in (1, 2)]
    second = talk.send({"messages": [*chat("a", leading=_clock("10:03"))["messages"], calls, *results]})
    assert second[:2] == first
    assert not talk.last.context_lost
    more = [calls, *results, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    third = talk.send({"messages": [*chat("a", leading=_clock("10:04"))["messages"], *more]})
    assert third[:5] == second
    assert not talk.last.context_lost
