"""Where a client's body has what the chat request that was made of it has."""

import re
from collections.abc import Mapping, Sequence

import msgspec

from gateway.core.errors import GatewayError

_MESSAGE = re.compile(r"messages\[(\d+)\]")


class ClientPlaces(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The places of one request; without any the chat request is the client's own.

    Attributes:
        messages: Where each chat message stands, such as ``messages[2].content[0]`` or ``system``.
        names: The client's names of members that have other names in the chat request.
    """

    messages: Sequence[str] = ()
    names: Mapping[str, str] = {}

    def of(self, param: str) -> str:
        """Where the client's body has what the chat request has at ``param``."""
        end = len(param)
        while end > 0:  # the longest part of the path that has another name
            own, found = self.names.get(param[:end]), _MESSAGE.fullmatch(param, 0, end)
            if own is None and found is not None and int(found[1]) < len(self.messages):
                own = self.messages[int(found[1])]
                if not own.endswith("]"):  # a member that is the text itself, such as ``instructions``
                    return own + param[end:].removeprefix(".content")
            if own is not None:
                return own + param[end:]
            end = max(param.rfind(".", 0, end), param.rfind("[", 0, end))
        return param

    def rename(self, error: GatewayError) -> None:
        """Let an error about the chat request name what is at fault as the client does."""
        if error.param is not None:
            own = self.of(error.param)
            error.message, error.param = error.message.replace(f"`{error.param}`", f"`{own}`"), own


SAME_PLACES = ClientPlaces()
