"""Whether two texts differ first inside JSON that holds the same data."""

import json

_LEVELS = 4
_LOOK_BACK_CHARS = 16_384
_OPEN, _CLOSE = "{[", "}]"


def json_sameness(before: str, after: str, at: int) -> str:
    """How JSON that begins in front of the first difference differs, if its data are the same.

    Args:
        before: The first text.
        after: The second.
        at: Their first differing character.

    Returns:
        ``json_key_order`` (keys in another order), ``json_spacing`` (blanks and escapes only), or nothing.
    """
    for start in _openings(before, at):
        try:
            one, one_end = _decoder.raw_decode(before, start)
            other, other_end = _decoder.raw_decode(after, start)
            if one_end <= at and other_end <= at:
                continue
            if json.dumps(one) == json.dumps(other):
                return "json_spacing"
            if json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True):
                return "json_key_order"
        except (ValueError, RecursionError):
            continue
    return ""


_decoder = json.JSONDecoder()


def _openings(text: str, at: int) -> list[int]:
    """Where the innermost brackets around a place were opened, innermost first."""
    found: list[int] = []
    closed = 0
    end = max(at - _LOOK_BACK_CHARS, 0)
    if not any(text.count(each, end, at) for each in _OPEN):
        return found
    for index in range(at - 1, end - 1, -1):
        character = text[index]
        if character in _CLOSE:
            closed += 1
        elif character in _OPEN:
            if closed:
                closed -= 1
            else:
                found.append(index)
                if len(found) == _LEVELS:
                    break
    return found
