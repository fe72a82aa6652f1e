"""Writes the reference of reasons, ``docs/reference/reasons.md``, from the table in ``gateway.core.reasons``.

``python -m docs.generate.reasons_page [FILE]``, run in the repository's root.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from gateway.core.reasons import REASONS, Remedy, Rung

_PAGE = Path("docs/reference/reasons.md")
_INTRODUCTION = """\
# Reasons

Written by `python -m docs.generate.reasons_page` from `gateway/core/reasons.py`: change the texts there, not here.

Every prompt token that had to be computed has exactly one reason, so for every request, and for every sum of requests,
hits and the tokens of all reasons are the prompt's tokens. The codes are values of the label `reason` of
[`gateway_missed_tokens_total`](metrics.md), and what the [admin port](admin-api.md) shows.

A request's prompt is cut into prefixes, each at least as long as the one before. What stands between two of them was
missed for one of the reasons of the longer one (`model_changed`, `model_updated`, `template_changed` and
`tokenizer_changed` also up to `seen`, where the very same tokens were computed before such a change):
"""
_RUNGS: Mapping[Rung, str] = {
    Rung.CONFIRMED: "Not computed again: the hits. As the engine reports; as was predicted where it reports nothing.",
    Rung.CHOSEN: "Expected to be held by the chosen replica.",
    Rung.ANYWHERE: "Expected to be held by some replica.",
    Rung.SEEN_HERE: "Computed before in the request's prefix space.",
    Rung.SEEN: "Computed before in any prefix space.",
    Rung.REFERENCE: "Equal, from the first token on, to the earlier request it is compared with.",
    Rung.REUSABLE: "As before, and what stands in that request, too, behind the first difference.",
    Rung.PROMPT: "All of it.",
}
_REMEDIES: Mapping[Remedy, str] = {
    Remedy.APPLICATION: "the authors of the prompts",
    Remedy.GATEWAY: "the operator of the gateway",
    Remedy.CAPACITY: "the owner of the replicas",
    Remedy.NONE: "not fixable: inherent in caching, or intended",
}


def page() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *_ladder(), *(line for rung in Rung for line in _section(rung))])


def _ladder() -> Iterator[str]:
    yield from ("| prefix | what it is | reasons for what it has more than the one before |", "| --- | --- | --- |")
    for rung, meaning in _RUNGS.items():
        reasons = ", ".join(f"[`{reason}`](#{reason})" for reason, text in REASONS.items() if text.rung is rung)
        reasons = reasons or "none: they were reused"
        yield f"| `{rung}` | {meaning} | {reasons} |"
    yield ""


def _section(rung: Rung) -> Iterator[str]:
    reasons = {reason: text for reason, text in REASONS.items() if text.rung is rung}
    if not reasons:
        return
    yield from (f"## Up to `{rung}`", "")
    for reason, text in reasons.items():
        yield from (f"### `{reason}`", "", f"**{text.title}.** {text.meaning}", "")
        yield from (f"What to do: {text.advice}", "", f"Who can: {_REMEDIES[text.remedy]}.", "")
        if text.rules:
            names = ", ".join(f"`{rule}`" for rule in text.rules)
            yield from (f"In the gateway: {names}, see [canonicalization](../canonicalization.md).", "")


def main(arguments: list[str]) -> None:
    """Write the page to the file given, else to its place in the repository."""
    target = Path(arguments[0]) if arguments else _PAGE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
