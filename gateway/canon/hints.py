"""What clients say for other vendors' caches: used, and passed on or taken out as configured."""

from typing import NamedTuple

from gateway.canon.settings import CanonSettings
from gateway.values.request import ChatRequest


class Hints(NamedTuple):
    """What came of a request's hints.

    Attributes:
        request: The request without what is to be taken out; itself if nothing is.
        affinity: What it says that it belongs together with: requests of one go to one replica where nothing else
            decides. None if it says nothing.
    """

    request: ChatRequest
    affinity: str | None


def hinted(request: ChatRequest, settings: CanonSettings) -> Hints:
    """Take out what is to be taken out, and read the rest."""
    raise NotImplementedError
