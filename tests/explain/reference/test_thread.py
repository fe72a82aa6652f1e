"""The messages of one prompt as a thread."""

from gateway.explain.prompt_text import Message, PromptText
from gateway.explain.reference.reference_index import Thread


class CountedText(str):
    """A text that counts how often its length is asked for."""

    __slots__ = ()
    asked = 0

    def __len__(self):
        CountedText.asked += 1
        return super().__len__()


def thread(*texts):
    messages = [Message("system", "short")]
    messages += [Message("user" if at % 2 == 0 else "assistant", text) for at, text in enumerate(texts)]
    return Thread("tenant", PromptText(tuple(messages)), None)


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


def test_only_lengths_under_whose_keys_something_is_held_are_looked_up():
    texts = "a", "b", "c", "d", "e", "f"
    found = thread(*texts)
    assert list(found.lengths((), 6)) == [1]
    held = {found.whole(2), found.answered(4), found.branch(5), thread(*texts[:3]).whole(3)}
    assert list(found.lengths(held, 6)) == [5, 4, 3, 2, 1]
    assert list(found.lengths(held, 4)) == [4, 3, 2, 1]
    assert list(thread("a", "b", "x", *texts[3:]).lengths(held, 6)) == [2, 1]
    assert list(thread().lengths(held, 0)) == list(thread().lengths(held, -1)) == []
