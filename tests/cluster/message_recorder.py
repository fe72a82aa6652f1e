"""A part of a gateway, for tests of the messages between gateways."""


class MessageRecorder:
    """A part of a gateway that sends what a test gives it, and keeps what it receives."""

    def __init__(self, *, always: bytes | None = None, raises: bool = False) -> None:
        self.received: list[bytes] = []
        self.missed_of: list[str] = []
        self.gone_of: list[str] = []
        self._always = always
        self._raises = raises
        self._next: list[bytes] = []

    @property
    def is_alone(self) -> bool:
        return bool(self.gone_of)

    def sends(self, what: bytes) -> None:
        self._next.append(what)

    def changes(self, now: float, *, everything: bool) -> bytes | None:
        if self._next:
            return self._next.pop(0)
        return self._always if everything else None

    def receive(self, peer: str, reported: bytes, now: float) -> None:
        if self._raises:
            raise ValueError(reported)
        self.received.append(reported)

    def missed(self, peer: str, now: float) -> None:
        self.missed_of.append(peer)

    def gone(self, peer: str, now: float) -> None:
        self.gone_of.append(peer)
