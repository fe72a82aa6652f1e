"""What the gateway itself put behind messages is no loss of the application."""

import pytest

from gateway.core.explanation import Difference
from gateway.core.reasons import Reason
from gateway.explain.comparison import is_block_missing, is_in_newest, own_share
from gateway.explain.prompt_text import Message, PromptText

DOCUMENTS = "Orders that have not left the warehouse can be cancelled at any time by the customer who sent them."


def block(value):
    return f"\n\n[Current context: what the marks above stand for]\n[context 1] {value}\n[End of context]"


def prompt(*users):
    """Users' messages behind a system message; an answer follows each but the last."""
    messages = [Message("system", "Be brief. The id is [context 1].")]
    for text in users:
        messages += [Message("user", text), Message("assistant", "Ok.")]
    return PromptText(tuple(messages[:-1]))


def difference(index, role="user", line=1):
    return Difference(Reason.USER_DATA, "words", f"messages[{index}].content", index, role, line, 1)


def in_newest(before, after, blocks, found):
    return is_in_newest(prompt(*before), prompt(*after), blocks, found)


def test_difference_in_the_newest_block_or_in_the_words_in_front_of_it():
    blocks = ((1, len(block("7c"))),)
    assert in_newest(["Hi" + block("2f")], ["Hi" + block("7c")], blocks, difference(1))
    assert in_newest(["Ho" + block("2f")], ["Hi" + block("7c")], blocks, difference(1))
    assert not in_newest(["Hi" + block("2f")], ["Hi" + block("7c")], (), difference(1))
    assert not in_newest(["Hi" + block("2f")], ["Hi" + block("7c")], blocks, difference(0, "system"))
    both = ((1, len(block("7c"))), (3, len(block("9d"))))
    assert not in_newest(["Ho", "And?"], ["Hi" + block("7c"), "And?" + block("9d")], both, difference(1))


def test_block_is_missing_where_a_message_ends_without_it():
    assert is_block_missing(prompt("Hi" + block("2f"), "And?"), prompt("Hi ", "And?"), difference(1))
    assert not is_block_missing(prompt("Ho" + block("2f"), "And?"), prompt("Hi", "And?"), difference(1))
    assert not is_block_missing(prompt("Hi" + block("2f"), "And?"), prompt("Hi"), difference(2, "assistant"))


@pytest.mark.parametrize(
    ("before", "after", "least", "most"),
    [
        ("Hi", "Ho", 0.0, 0.0),
        ("Where is it? The answer is in the warehouse.", "Can I cancel it?", 0.0, 0.0),
        # 19 words of the documents occur in both, and 18 of the block.
        ("Where is it? " + DOCUMENTS, "Can I cancel it? " + DOCUMENTS, 0.4, 0.6),
        ("Where is it? " + 9 * DOCUMENTS, "Can I cancel it? " + 9 * DOCUMENTS, 0.85, 0.95),
    ],
)
def test_own_share_is_that_of_the_words_in_front_of_the_block(before, after, least, most):
    blocks = ((1, len(block("7c"))),)
    assert least <= own_share(prompt(before + block("2f")), prompt(after + block("7c")), blocks) <= most


def test_without_an_earlier_block_all_that_occurs_in_both_is_the_clients():
    blocks = ((1, len(block("7c"))),)
    assert own_share(prompt("Where? " + DOCUMENTS), prompt("Why? " + DOCUMENTS + block("7c")), blocks) == 1.0
