"""``system-order``: sorts several system or developer messages, which frameworks send in varying order."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar

from gateway.canon.rule import NOTHING, Detected, Edit, Fields, RuleContext
from gateway.canon.texts import LEADING_ROLES, messages
from gateway.config.canon_settings import RoleOrderSettings
from gateway.core.canonical import RuleName
from gateway.core.request import Endpoint

_PLAIN = {"role", "content"}


class SystemOrder:
    """Sorts neighbouring system messages by their texts, and neighbouring developer messages; their places stay.

    Messages of users between them do not count, because ``role-order`` takes them out. Messages that are more than
    plain text come last, in their original order. Code of its edit, one for all messages: ``sorted``.

    Args:
        settings: Of ``role-order``: whether messages behind the first answer are among those that it moves together.
    """

    name: ClassVar[RuleName] = RuleName.SYSTEM_ORDER

    def __init__(self, settings: RoleOrderSettings) -> None:
        self._later = settings.later

    def detect(self, fields: Fields, given: RuleContext) -> Detected:
        """See ``Rule``."""
        if given.endpoint is not Endpoint.CHAT:
            return NOTHING
        before = messages(fields)
        front = self._front(before)
        if len(front) < 2:
            return NOTHING
        after = list(before)
        moved = 0
        for _, group in groupby(front, key=lambda number: before[number].get("role")):
            places = list(group)
            for place, message in zip(places, sorted((before[n] for n in places), key=_place), strict=True):
                moved += message is not before[place]
                after[place] = message
        if not moved:
            return NOTHING
        summary = f"{moved} messages of the system or developer are put in the order of their texts."
        return Detected([Edit(self.name, "sorted", ("messages",), before, after, summary=summary)])

    def _front(self, found: Sequence[Mapping[str, Any]]) -> list[int]:
        """Indexes of the messages that ``role-order`` would bring together."""
        front: list[int] = []
        for number, message in enumerate(found):
            role = message.get("role")
            if role == "assistant" and not self._later:
                break
            if role in LEADING_ROLES:
                front.append(number)
        return front


def _place(message: Mapping[str, Any]) -> tuple[bool, str]:
    content = message.get("content")
    is_plain = isinstance(content, str) and message.keys() == _PLAIN
    return not is_plain, content if is_plain and isinstance(content, str) else ""
