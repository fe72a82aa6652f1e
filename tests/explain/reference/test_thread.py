"""The messages of one prompt as a thread."""

from gateway.core.explanation import ReplyChoice
from gateway.explain.prompt_text import Message, PromptText
from gateway.explain.reference.thread import Thread


class CountedText(str):
    """A text that counts how often its length is asked for."""

    __slots__ = ()
    asked = 0

    def __len__(self):
        CountedText.asked += 1
        return super().__len__()


def thread(*texts, reply=None):
    messages = [Message("system", "short")]
    messages += [Message("user" if at % 2 == 0 else "assistant", text) for at, text in enumerate(texts)]
    replies = () if reply is None else (ReplyChoice(reply, None),)
    return Thread(PromptText(tuple(messages)), replies)


def test_messages_with_much_text_together_are_distinctive():
    found = thread("x" * 60, "y" * 59, "z", "w" * 120)
    assert not found.is_distinctive(0, 2)
    assert found.is_distinctive(0, 3)
    assert not found.is_distinctive(1, 3)
    assert found.is_distinctive(3, 4)
    assert not found.is_distinctive(0, 0)


def test_asking_for_every_prefix_does_not_read_the_messages_again():
    CountedText.asked = 0
    found = thread(*(CountedText(f"message {number}") for number in range(500)))
    assert sum(found.is_distinctive(0, length) for length in range(500)) > 0
    assert CountedText.asked <= 500


def test_a_turn_is_continued_with_or_without_its_reply():
    earlier, later = thread("a", "b", "c", reply="d"), thread("a", "b", "c", "d", "e")
    assert later.continues(earlier)
    assert later.answers(earlier)
    assert thread("a", "b", "c", "x", "e").continues(earlier)
    assert not thread("a", "b", "c", "x", "e").answers(earlier)
    assert not thread("a", "b", "x", "d", "e").continues(earlier)
    assert not earlier.continues(later)
    assert not later.continues(thread())


def test_the_end_of_an_earlier_turn_is_found_where_it_occurs_last():
    long = "a reply of more than thirty-two characters"
    assert thread("a", "b", "c", "d").end_of(thread("x", "b", "c")) == (1, 3)
    assert thread("c", "d", "e").end_of(thread("a", "b", "c", reply="d")) == (0, 2)
    assert thread("x", long, "e").end_of(thread("a", "b", "c", reply=long)) == (1, 2)
    assert thread("x", "short", "e").end_of(thread("a", "b", "c", reply="short")) is None
    assert thread("c", "x").end_of(thread("a", "b", "c")) is None
    assert thread("c").end_of(thread("c")) is None
