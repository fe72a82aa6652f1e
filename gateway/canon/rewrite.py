"""A body with other messages and tools: what was changed is written anew, everything else stays byte for byte."""

from gateway.canon.rule import Fields


def rewritten(body: bytes, before: Fields, after: Fields) -> bytes:
    """The body of a request after its fields were changed.

    Args:
        body: The body of ``before``.
        before: Its fields.
        after: The fields it is to have; what was not changed is the very same object in both.
    """
    raise NotImplementedError
