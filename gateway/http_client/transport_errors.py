"""Errors of the connection between gateway and replica."""


class TransportError(Exception):
    """No complete answer was received."""


class NotConnected(TransportError):
    """No connection could be made; nothing was sent."""


class Broken(TransportError):
    """The connection broke, or the received bytes are not HTTP. The request may have been computed."""


class ResponseTooLarge(TransportError):
    """The body has more bytes than the caller accepts."""
