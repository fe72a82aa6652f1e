"""``system-order``: sorts several system or developer messages, which frameworks send in varying order."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar

from gateway.canon.rule import NOTHING, Detected, Edit, Fields, RuleContext
from gateway.canon.rules.role_order import is_plain
from gateway.canon.texts import LEADING_ROLES, messages
from gateway.config.canon_settings import RoleOrderSettings
from gateway.core.canonical import RuleName
from gateway.core.request import Endpoint


class SystemOrder:
    """Sorts neighbouring system messages by their texts, and neighbouring developer messages; their places stay.

    Messages of users between them do not count, because ``role-order`` takes them out. Messages that are more or less
    than visible text come last, in their original order. If one of them has a code fence, all stay: where the fence is
    not closed, ``role-order`` joins only some, and these would be in another order than before. Code of its edit, one
    for all messages: ``sorted``.

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
        if len(front) < 2 or any(_has_fence(before[number]) for number in front):
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
    return (False, str(message["content"])) if is_plain(message) else (True, "")


def _has_fence(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, str) and ("```" in content or "~~~" in content)
