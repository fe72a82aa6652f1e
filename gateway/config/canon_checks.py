"""Checks of canonicalization settings across entries."""

from collections.abc import Collection, Iterator, Sequence

from gateway.config.canon_settings import CanonSettings

Mistake = tuple[tuple[str | int, ...], str]
"""Location from the top of the file, and the problem with its fix."""


def canon_mistakes(canon: CanonSettings, models: Collection[str]) -> Iterator[Mistake]:
    """Mistakes in the combination of entries, or with other parts of the file.

    Args:
        canon: The settings, each entry valid on its own.
        models: Ids of all models.
    """
    suffix = canon.dynamic_suffix
    yield from _repeated(("canon", "dynamic_suffix", "slots"), [slot.name for slot in suffix.slots])
    yield from _repeated(("canon", "patterns"), [pattern.name for pattern in canon.patterns])
    for s, slot in enumerate(suffix.slots):
        for m, model in enumerate(slot.models):
            if model not in models:
                place = ("canon", "dynamic_suffix", "slots", s, "models", m)
                yield place, f"there is no model {model[:60]!r} (there are: {', '.join(sorted(models))})"
    if suffix.opening.strip() == suffix.closing.strip():
        yield (
            ("canon", "dynamic_suffix", "closing"),
            "the same line as `opening`: the model could not tell where the block ends",
        )


def _repeated(place: tuple[str, ...], names: Sequence[str]) -> Iterator[Mistake]:
    first: dict[str, int] = {}
    for n, name in enumerate(names):
        if first.setdefault(name, n) != n:
            there = f"{'.'.join(place)}[{first[name]}]"
            yield (*place, n, "name"), f"{there} has this name already (reports could not tell the two apart)"
