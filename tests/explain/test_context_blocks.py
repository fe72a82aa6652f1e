"""What the gateway itself put behind messages is no loss of the application."""

import pytest

from gateway.core.explanation import Difference
from gateway.core.reasons import Reason
from gateway.explain.context_blocks import BlockPlace, block_place, own_share
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


def placed(before, after, blocks, found):
    return block_place(prompt(*before), prompt(*after), blocks, found)


def test_difference_in_the_newest_block_or_in_the_words_in_front_of_it():
    blocks = ((1, len(block("7c"))),)
    assert placed(["Hi" + block("2f")], ["Hi" + block("7c")], blocks, difference(1)) is BlockPlace.NEWEST
    assert placed(["Ho" + block("2f")], ["Hi" + block("7c")], blocks, difference(1)) is BlockPlace.NEWEST
    assert placed(["Hi" + block("2f")], ["Hi" + block("7c")], (), difference(1)) is BlockPlace.ELSEWHERE
    assert placed(["Hi" + block("2f")], ["Hi" + block("7c")], blocks, difference(0, "system")) is BlockPlace.ELSEWHERE


def test_difference_in_an_earlier_turn_is_the_gateways_only_in_its_block():
    blocks = ((1, len(block("7c"))), (3, len(block("9d"))))
    after = ["Hi" + block("7c"), "And?" + block("9d")]
    assert placed(["Hi" + block("2f"), "And?"], after, blocks, difference(1)) is BlockPlace.EARLIER
    assert placed(["Hi", "And?"], after, blocks, difference(1)) is BlockPlace.EARLIER
    assert placed(["Ho" + block("7c"), "And?"], after, blocks, difference(1)) is BlockPlace.ELSEWHERE


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
