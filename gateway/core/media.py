"""Images and other items inside a prompt."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MediaItem:
    """One item, whose content is not in the token ids: these are placeholders.

    Attributes:
        offset: Position of its first placeholder in the prompt, in tokens.
        length: Placeholders it takes.
        identifier: The engine's hash of its content.
    """

    offset: int
    length: int
    identifier: str
