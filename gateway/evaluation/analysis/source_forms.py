"""Finds client families that write the same leading messages and tools in different forms: blanks, order, Unicode.

Live explanations compare families by their masked text, in which such forms are equal, and forms cost a live cache
little: each is cached once. But every form needs cache memory and a cold request of its own, on every replica.
"""

from dataclasses import dataclass, field
from typing import Any

from gateway.core.bounded_cache import BoundedCache
from gateway.explain.diff import find_difference
from gateway.explain.prompt_text import LEADING_ROLES, Message, PromptText
from gateway.explain.reference import Frames
from gateway.explain.reference.frame import digest

_MAX_BYTES = 32 * 1024 * 1024
_ENTRY_BYTES = 1000
_MAX_SOURCES = 10
_MAX_FORMS = 4
"""Forms of one family from which on the text varies with every request, which is no matter of form."""


@dataclass(slots=True)
class _SourceForm:
    """A family's use of one frame: its forms with their requests, and a sample of the first one."""

    sample: PromptText
    forms: dict[int, int] = field(default_factory=dict)


class SourceForms:
    """The forms in which client families send each frame. Bounded in bytes; the least recently used are dropped.

    Args:
        frames: Reads frames, with a cache.
    """

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._sent: BoundedCache[tuple[str, str, int], dict[str, _SourceForm]] = BoundedCache(max_weight=_MAX_BYTES)

    def add(self, text: PromptText, source: str, tenant: str, model: str) -> None:
        """Count a request."""
        frame = self._frames.of(text)
        if frame.is_opening or frame.skeleton is None:
            return
        front = text.leading or tuple(each for each in text.messages if each.role in LEADING_ROLES)
        key = (tenant, model, frame.skeleton)
        sources = self._sent.get(key)
        if sources is None:
            sources = {}
        sent = sources.get(source)
        if sent is None:
            if len(sources) >= _MAX_SOURCES:
                return
            sent = sources[source] = _SourceForm(PromptText((*front, Message("user", "?")), text.tools))
            size = sum(len(each.text) for each in front) + sum(len(tool.raw) for tool in text.tools)
            self._sent.put(key, sources, weight=len(sources) * (_ENTRY_BYTES + 4 * size))
        form = digest("\0".join([*(each.text for each in front), *(tool.raw for tool in text.tools)]))
        if form in sent.forms or len(sent.forms) <= _MAX_FORMS:
            sent.forms[form] = sent.forms.get(form, 0) + 1

    def shown(self) -> list[dict[str, Any]]:
        """Differences of families to one with more requests, in the form of ``Families.shown``."""
        rows: list[dict[str, Any]] = []
        for (tenant, model, _), sources in self._sent.items():
            stable = {name: each for name, each in sources.items() if len(each.forms) <= _MAX_FORMS}
            ranked = sorted(stable, key=lambda name: (-sum(stable[name].forms.values()), name))
            for name in ranked[1:]:
                than, own = stable[ranked[0]], stable[name]
                requests = sum(count for form, count in own.forms.items() if form not in than.forms)
                if not requests:
                    continue
                found = find_difference(
                    than.sample,
                    own.sample,
                    before_source=ranked[0],
                    after_source=name,
                    same_conversation=False,
                    replies=(),
                    tools_first=False,
                )
                if found is not None:
                    difference = {
                        "reason": str(found.reason),
                        "detail": found.detail,
                        "path": found.path,
                        "said": found.said,
                        "before": found.before,
                        "after": found.after,
                    }
                    row = {"tenant": tenant, "model": model, "source": name, "than": ranked[0], "requests": requests}
                    rows.append(row | {"difference": difference})
        return rows
