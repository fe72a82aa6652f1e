"""Blocks of earlier turns stand where they were, so that a conversation's prompt only grows."""

from moving import NOW, OPENING, Conversation, block, chat


def _clock(time, more=""):
    return f"You are Eva.\nCurrent time: 2026-11-21 {time}{more}"


def test_a_later_turn_begins_with_what_the_earlier_one_was():
    conversation = Conversation()
    first = conversation.send(chat("a", leading=_clock("10:02")))
    assert not conversation.last.context_lost
    second = conversation.send(chat("a", "b", "c", leading=_clock("10:05")))
    assert second[:2] == first
    assert second[3]["content"] == "c" + block("[context 1] Current time: 2026-11-21 10:05")
    third = conversation.send(chat("a", "b", "c", "d", "e", leading=_clock("10:09")))
    assert third[:4] == second
    assert [edit.what for edit in conversation.last.edits] == ["moved", "restored", "restored", "added"]


def test_what_did_not_change_is_not_repeated_and_what_comes_back_is():
    conversation = Conversation()
    conversation.send(chat("a", leading=_clock("10:02", "\nUser ID: 42")))
    second = conversation.send(chat("a", "b", "c", leading=_clock("10:02", "\nUser ID: 42")))
    assert second[3]["content"] == "c"
    third = conversation.send(chat("a", "b", "c", "d", "e", leading=_clock("10:05", "\nUser ID: 42")))
    assert third[5]["content"] == "e" + block("[context 1] Current time: 2026-11-21 10:05")
    assert third[:4] == second
    fourth = conversation.send(chat("a", "b", "c", "d", "e", "f", "g", leading=_clock("10:02", "\nUser ID: 42")))
    assert fourth[7]["content"] == "g" + block("[context 1] Current time: 2026-11-21 10:02")
    assert fourth[:6] == third


def test_a_turn_tried_again_counts_as_it_was_tried_last():
    conversation = Conversation()
    conversation.send(chat("a", leading=_clock("10:02")))
    conversation.send(chat("a", "b", "c", leading=_clock("10:05")))
    again = conversation.send(chat("a", "b", "c", leading=_clock("10:06")))
    later = conversation.send(chat("a", "b", "c", "d", "e", leading=_clock("10:09")))
    assert later[:4] == again


def test_a_turn_tried_again_that_needs_no_block_forgets_its_first_one():
    conversation = Conversation()
    conversation.send(chat("a", leading=_clock("10:02")))
    conversation.send(chat("a", "b", "c", leading=_clock("10:05")))
    again = conversation.send(chat("a", "b", "c", leading=_clock("10:02")))
    assert again[3]["content"] == "c"
    later = conversation.send(chat("a", "b", "c", "d", "e", leading=_clock("10:09")))
    assert later[:4] == again


def test_tool_loops_grow_as_well():
    conversation = Conversation()
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "4"}
    first = conversation.send(chat("a", leading=_clock("10:02")))
    second_fields = chat("a", leading=_clock("10:03"))
    second_fields["messages"] += [call, result]
    second = conversation.send(second_fields)
    assert second[:2] == first
    assert second[2] is call
    assert second[3]["content"] == "4" + block("[context 1] Current time: 2026-11-21 10:03")
    third_fields = chat("a", leading=_clock("10:04"))
    third_fields["messages"] += [call, result, call, result]
    assert conversation.send(third_fields)[:4] == second


def test_an_answer_begun_by_the_client_stays_last():
    conversation = Conversation()
    sent = conversation.send(chat("a", "Sure", leading=_clock("10:02")))
    assert sent[1]["content"] == "a" + block("[context 1] Current time: 2026-11-21 10:02")
    assert sent[2] == {"role": "assistant", "content": "Sure"}
    assert conversation.send(chat("a", "Sure, here", "b", leading=_clock("10:05")))[:2] == sent[:2]


def test_a_forgotten_conversation_goes_on_and_says_so():
    conversation = Conversation()
    conversation.send(chat("a", leading=_clock("10:02")))
    conversation.memory.clear()
    sent = conversation.send(chat("a", "b", "c", leading=_clock("10:05")))
    assert conversation.last.context_lost
    assert sent[1]["content"] == "a"
    assert sent[3]["content"] == "c" + block("[context 1] Current time: 2026-11-21 10:05")
    conversation.send(chat("a", "b", "c", "d", "e", leading=_clock("10:09")))
    assert not conversation.last.context_lost


def test_no_tenant_gets_the_blocks_of_another():
    conversation = Conversation()
    conversation.send(chat("a", leading=_clock("10:02")), owner="acme")
    sent = conversation.send(chat("a", "b", "c", leading=_clock("10:05")), owner="other")
    assert sent[1]["content"] == "a"
    assert conversation.last.context_lost


def test_values_that_belong_to_a_conversation_keep_it_apart():
    conversation = Conversation()
    conversation.send(chat("a", leading=_clock("10:02", "\nSession ID: s1")))
    sent = conversation.send(chat("a", "b", "c", leading=_clock("10:05", "\nSession ID: s2")))
    assert sent[1]["content"] == "a"
    conversation.send(chat("a", leading=_clock("10:02", "\nSession ID: s1")))
    sent = conversation.send(chat("a", "b", "c", leading=_clock("10:05", "\nSession ID: s1")))
    assert "s1" in sent[1]["content"]


def test_values_that_belong_to_a_request_do_not():
    conversation = Conversation()
    first = conversation.send(chat("a", leading=_clock("10:02", "\nRequest ID: r1")))
    assert conversation.send(chat("a", "b", "c", leading=_clock("10:05", "\nRequest ID: r2")))[:2] == first


def test_marks_of_other_vendors_caches_may_move():
    conversation = Conversation()
    marked = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]
    first = conversation.send(chat(marked, leading=_clock("10:02")))
    sent = conversation.send(chat([{"type": "text", "text": "a"}], "b", "c", leading=_clock("10:05")))
    assert sent[1]["content"][1:] == first[1]["content"][1:]


def test_a_block_of_other_settings_comes_back_as_it_was():
    conversation = Conversation()
    conversation.send(chat("a", leading=_clock("10:02")))
    conversation.memory = {
        key: "(time: 10:02)" if kept.startswith(OPENING) else kept for key, kept in conversation.memory.items()
    }
    sent = conversation.send(chat("a", "b", "c", leading=_clock("10:05")))
    assert sent[1]["content"] == "a\n\n(time: 10:02)"


def test_texts_no_utf8_can_hold_and_numbers_beyond_64_bits_have_keys():
    conversation = Conversation()
    first = conversation.send(chat("a\ud800", leading=_clock("10:02")))
    assert conversation.send(chat("a\ud800", "b", "c", leading=_clock("10:05")))[:2] == first
    odd = chat("a", leading=_clock("10:02"))
    odd["messages"][1]["weight"] = 2**70
    assert conversation.send(odd, now=NOW)[0]["content"] == "You are Eva.\n[context 1]"


def test_so_may_marks_of_a_whole_message():
    conversation = Conversation()
    marked = chat("a", leading=_clock("10:02"))
    marked["messages"][1]["cache_control"] = {"type": "ephemeral"}
    first = conversation.send(marked)
    sent = conversation.send(chat("a", "b", "c", leading=_clock("10:05")))
    assert sent[1]["content"] == first[1]["content"]


def test_conversations_that_begin_alike_keep_what_is_their_own():
    """Both say "hi" first, a minute apart; from where they differ on, neither takes the other one's place."""
    conversation = Conversation()
    conversation.send(chat("hi", leading=_clock("10:02")))
    conversation.send(chat("hi", leading=_clock("10:03")))
    ann = conversation.send(chat("hi", "hello", "I am Ann", leading=_clock("10:04")))
    bob = conversation.send(chat("hi", "hello", "I am Bob", leading=_clock("10:05")))
    conversation.send(chat("hi", leading=_clock("10:06")))
    assert conversation.send(chat("hi", "hello", "I am Ann", "yes", "so?", leading=_clock("10:07")))[:4] == ann
    assert not conversation.last.context_lost
    assert conversation.send(chat("hi", "hello", "I am Bob", "yes", "so?", leading=_clock("10:08")))[:4] == bob


def test_a_part_that_was_forgotten_is_reported():
    conversation = Conversation()
    conversation.send(chat("a", leading=_clock("10:02")))
    first = dict(conversation.memory)
    conversation.send(chat("a", "b", "c", leading=_clock("10:05")))
    conversation.memory = first
    sent = conversation.send(chat("a", "b", "c", "d", "e", leading=_clock("10:07")))
    assert conversation.last.context_lost
    assert sent[1]["content"] == "a" + block("[context 1] Current time: 2026-11-21 10:02")
    assert sent[3]["content"] == "c"
    assert sent[5]["content"] == "e" + block("[context 1] Current time: 2026-11-21 10:07")


def test_tools_that_answer_at_once_are_no_turns():
    conversation = Conversation()
    asked = chat("a", leading=_clock("10:02"))
    first = conversation.send(asked)
    calls = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}, {"id": "2"}]}
    results = [{"role": "tool", "content": str(n), "tool_call_id": str(n)} for n in (1, 2)]
    second = conversation.send({"messages": [*chat("a", leading=_clock("10:03"))["messages"], calls, *results]})
    assert second[:2] == first
    assert not conversation.last.context_lost
    more = [calls, *results, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    third = conversation.send({"messages": [*chat("a", leading=_clock("10:04"))["messages"], *more]})
    assert third[:5] == second
    assert not conversation.last.context_lost
