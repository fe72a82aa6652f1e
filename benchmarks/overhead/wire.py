"""The least HTTP that the mock engines and the load need: whole messages with a length, over kept connections."""


def split_message(data: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Head, body and rest of a message with a content-length, or None while it is incomplete."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = data[:end].lower()
    at = head.find(b"content-length:")
    length = int(head[at + 15 : (head.find(b"\r\n", at) + 1 or len(head) + 1) - 1]) if at >= 0 else 0
    stop = end + 4 + length
    return (data[:end], data[end + 4 : stop], data[stop:]) if len(data) >= stop else None
