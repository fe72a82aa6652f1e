"""Finds out by probes how a chat template takes system messages inside a conversation.

A message stands well where all in front of it is printed as it was without it, and it is printed behind that. Then a
later turn begins with the tokens of the turn before.
"""

from collections.abc import Callable, Sequence

from gateway.core.errors import TokenizerUnavailable
from gateway.core.prompt import LaterSystem, Message

_USER, _ANSWER, _RESULT, _LATER = "Probe of a question.", "Probe of an answer.", "Probe of a result.", "Probe of a note."
_CALL = {"id": "probe0001", "type": "function", "function": {"name": "probe", "arguments": "{}"}}

_ASKED: Message = {"role": "user", "content": _USER}
_ANSWERED: Message = {"role": "assistant", "content": _ANSWER}
# Some templates print reasoning only behind the user's last message: a message of the user changes all before it.
_CALLED: Message = {"role": "assistant", "content": "", "reasoning_content": "Probe.", "tool_calls": [_CALL]}
_RETURNED: Message = {"role": "tool", "tool_call_id": _CALL["id"], "content": _RESULT}

_PLACES: Sequence[tuple[Sequence[Message], Sequence[Message]]] = (
    ((_ASKED, _ANSWERED, _ASKED), (_ANSWERED,)),
    ((_ASKED, _ANSWERED), (_ASKED,)),
    ((_ASKED, _CALLED, _RETURNED), (_ANSWERED,)),
)
"""What may stand in front of the message, and behind it."""


def later_system(render: Callable[[Sequence[Message]], str]) -> LaterSystem:
    """How a template takes a system message that is not the first one.

    Args:
        render: Renders a request's messages; raises ``TokenizerUnavailable`` where the template refuses them.
    """
    known = []
    for front, behind in _PLACES:
        if text := _rendered(render, front):
            last = str(front[-1]["content"])
            known.append((text[: text.rfind(last) + len(last)], front, behind))
    for role, form in (("system", LaterSystem.IN_PLACE), ("user", LaterSystem.AS_USER)):
        later = {"role": role, "content": _LATER}
        texts = [(text, _rendered(render, [*front, later, *behind])) for text, front, behind in known]
        if texts and all(whole.startswith(text) and _LATER in whole[len(text) :] for text, whole in texts):
            return form
    return LaterSystem.JOINED


def _rendered(render: Callable[[Sequence[Message]], str], messages: Sequence[Message]) -> str:
    """The text; empty where the template refuses it, as some refuse all tools."""
    try:
        return render(messages)
    except TokenizerUnavailable:
        return ""
