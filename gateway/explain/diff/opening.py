"""What stands between a prompt's leading messages and the first answer."""

from gateway.explain.prompt_text import PromptText

_OPENING_MESSAGES = 6


def questions_in_front(text: PromptText) -> int:
    """How many messages of the user follow the leading ones directly, among the prompt's first six."""
    count = 0
    for message in text.messages[len(text.leading) : _OPENING_MESSAGES]:
        if message.role != "user":
            break
        count += 1
    return count
