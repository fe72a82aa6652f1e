"""The first difference of two prompts, in the order in which a chat template prints them."""

from collections.abc import Sequence

from gateway.settle.difference.arguments import documents_difference, end_difference, front_difference
from gateway.settle.difference.given import Given
from gateway.settle.difference.reply import reply_difference
from gateway.settle.difference.sequence import message_difference, trimming_difference
from gateway.settle.difference.tools import tools_difference
from gateway.settle.prompt_text import PromptText
from gateway.values.explain import Difference, Reply


def find_difference(
    before: PromptText,
    after: PromptText,
    *,
    before_source: str,
    after_source: str,
    same_conversation: bool,
    replies: Sequence[Reply],
    tools_first: bool,
) -> Difference | None:
    """Where a prompt first differs from an earlier one, and why.

    Args:
        before: The earlier prompt.
        after: The later one.
        before_source: Client family of the earlier.
        after_source: Client family of the later.
        same_conversation: Whether the later is meant to go on where the earlier ended.
        replies: What the engine answered to the earlier; empty if that is not known.
        tools_first: Whether the chat template prints tools in front of the system message.

    Returns:
        The first difference. None if the one prompt's texts are the other's beginning: appending is no difference.
    """
    given = Given(before, after, before_source, after_source, same_conversation, replies)
    if found := front_difference(given):
        return found
    tools = tools_difference(given)
    if tools and tools_first:
        return tools
    messages = message_difference(given)
    if tools and not (messages and _is_in_front_of_tools(given, messages)):
        return tools
    documents = documents_difference(given)
    if documents and not (messages and _is_leading(given, messages)):
        return documents
    return messages or trimming_difference(given) or reply_difference(given) or end_difference(given)


def _is_in_front_of_tools(given: Given, found: Difference) -> bool:
    """Templates print tools into, or right behind, a first system message, else in front of all messages."""
    return found.message == 0 and bool(given.before.leading or given.after.leading)


def _is_leading(given: Given, found: Difference) -> bool:
    return found.message is not None and found.message < max(len(given.before.leading), len(given.after.leading))
