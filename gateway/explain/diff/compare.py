"""The first difference of two prompts, in the order in which a chat template prints them."""

from collections.abc import Sequence

from gateway.core.explanation import Difference, ReplyChoice
from gateway.explain.diff.given import PromptPair
from gateway.explain.diff.reply_differences import reply_difference
from gateway.explain.diff.sequence import message_difference, trimming_difference
from gateway.explain.diff.template_arguments import documents_difference, end_difference, front_difference
from gateway.explain.diff.tool_differences import tools_difference
from gateway.explain.prompt_text import PromptText


def find_difference(
    before: PromptText,
    after: PromptText,
    *,
    before_source: str,
    after_source: str,
    same_conversation: bool,
    replies: Sequence[ReplyChoice],
    tools_first: bool,
    equal_share: float = 1.0,
) -> Difference | None:
    """Where a prompt first differs from an earlier one, and why.

    What not every template prints (its arguments, documents, names, the content's form) counts if nothing else differs,
    or if the tokens part well in front of what else does.

    Args:
        before: The earlier prompt.
        after: The later one.
        before_source: Client family of the earlier.
        after_source: Client family of the later.
        same_conversation: Whether the later is meant to go on where the earlier ended.
        replies: What the engine answered to the earlier; empty if that is not known.
        tools_first: Whether the chat template prints tools in front of the system message.
        equal_share: Which part of the later prompt's tokens, from the first on, is the earlier one's, 0 to 1.

    Returns:
        The first difference. None if the one prompt's texts are the other's beginning: appending is no difference.
    """
    given = PromptPair(before, after, before_source, after_source, same_conversation, replies)
    sure = _sure_difference(given, tools_first=tools_first) or reply_difference(given)
    for find in (front_difference, documents_difference, trimming_difference):
        found = find(given)
        if found is not None and (sure is None or _parts_in_front(given, sure, equal_share)):
            return found
    return sure or end_difference(given)


def _sure_difference(given: PromptPair, *, tools_first: bool) -> Difference | None:
    """The first difference in what every template prints."""
    tools = tools_difference(given)
    if tools and tools_first:
        return tools
    messages = message_difference(given)
    return tools if tools and not (messages and _is_in_front_of_tools(given, messages)) else messages


def _parts_in_front(given: PromptPair, found: Difference, equal_share: float) -> bool:
    """Whether the tokens part in front of a difference: much fewer are equal than there is text in front of it."""
    texts = [message.text for message in given.after.messages]
    whole = sum(map(len, texts)) + sum(len(tool.raw) for tool in given.after.tools)
    in_front = sum(map(len, texts[: found.message])) if found.message is not None else 0
    return equal_share < in_front / max(whole, 1) / 2


def _is_in_front_of_tools(given: PromptPair, found: Difference) -> bool:
    """Templates print tools into, or right behind, a first system message, else in front of all messages."""
    return found.message == 0 and bool(given.before.leading or given.after.leading)
