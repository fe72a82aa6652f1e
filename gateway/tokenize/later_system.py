"""Finds out by probes how a chat template takes system messages inside a conversation.

A message may stand where all in front of it is printed as without it, and itself behind that: then a later turn begins
with the tokens of the turn before.
"""

from collections.abc import Callable, Sequence

from gateway.core.errors import TokenizerUnavailable
from gateway.core.prompt import LaterSystem, Message

_LATER = "Probe of a note."
_ASKED: Message = {"role": "user", "content": "Probe of a question."}
_ANSWERED: Message = {"role": "assistant", "content": "Probe of an answer."}
_CALL = {"id": "probe0001", "type": "function", "function": {"name": "probe", "arguments": "{}"}}
# Some templates print reasoning only behind the user's last message: a message of the user changes all before it.
_CALLED: Message = {"role": "assistant", "content": "", "reasoning_content": "Probe.", "tool_calls": [_CALL]}
_RETURNED: Message = {"role": "tool", "tool_call_id": "probe0001", "content": "Probe of a result."}
_PLACES = (
    ((_ASKED, _ANSWERED, _ASKED), _ANSWERED),
    ((_ASKED, _ANSWERED), _ASKED),
    ((_ASKED, _CALLED, _RETURNED), _ANSWERED),
)
"""What stands in front of the message, and behind it."""


def later_system(render: Callable[[Sequence[Message]], str]) -> LaterSystem:
    """How a template takes later system messages. ``render``: raises ``TokenizerUnavailable`` for what it refuses."""

    def rendered(*messages: Message) -> str:
        try:
            return render(messages)
        except TokenizerUnavailable:
            return ""

    def stands(role: str, front: Sequence[Message], behind: Message) -> bool:
        before, last = rendered(*front, behind), front[-1]["content"]
        before = before[: before.rfind(last) + len(last)]
        whole = rendered(*front, {"role": role, "content": _LATER}, behind)
        return whole.startswith(before) and _LATER in whole[len(before) :]

    places = [(front, behind) for front, behind in _PLACES if rendered(*front, behind)]  # some templates refuse tools
    if places and all(stands("system", *place) for place in places):
        return "in_place"
    return "as_user" if places and all(stands("user", *place) for place in places) else "joined"
