"""What can go wrong between the gateway and a replica."""


class TransportError(Exception):
    """No complete answer could be had."""


class NotConnected(TransportError):
    """No connection could be made; nothing was sent."""


class Broken(TransportError):
    """The connection broke, or what came over it is not HTTP. The request may have been computed."""


class ResponseTooLarge(TransportError):
    """The body has more bytes than the caller accepts."""
