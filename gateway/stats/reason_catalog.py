"""The catalog of reasons and rungs with their texts, JSON-ready."""

from gateway.core.reasons import REASONS, RUNGS, Rung


def catalog() -> list[dict[str, object]]:
    """Every reason, in the order of the ladder."""
    return [
        {
            "code": reason,
            "title": text.title,
            "meaning": text.meaning,
            "advice": text.advice,
            "rung": text.rung,
            "remedy": text.remedy,
            "rules": text.rules,
        }
        for reason, text in REASONS.items()
    ]


def rungs() -> list[dict[str, object]]:
    """Every rung, in the order of the ladder."""
    return [{"rung": rung, "title": RUNGS[rung].title, "meaning": RUNGS[rung].meaning} for rung in Rung]
