"""Messages between gateways: encoding, and what is refused."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.messages import (
    PARTS,
    VERSION,
    DrainsMessage,
    LoadsMessage,
    MessageRefused,
    PeerMessage,
    decode_part,
    encode_part,
)
from gateway.explain.worker.explain_replication import SeenMessages
from gateway.fleet.drains import DrainOrder

MESSAGE = PeerMessage(VERSION, b"8 bytes.", 7, {"loads": encode_part(LoadsMessage([("r", 0, 1, 2, 3)]))})


def test_a_message_is_decoded_as_it_was_encoded():
    assert PeerMessage.decode(MESSAGE.encode()) == MESSAGE


@pytest.mark.parametrize(
    "message",
    [LoadsMessage([("r", 0, 1, 2, 3)]), DrainsMessage([DrainOrder("a", on=True, at=1.5)]), SeenMessages((b"one", b""))],
)
def test_a_part_is_decoded_as_it_was_encoded(message):
    (kind,) = [kind for kind in PARTS.values() if type(message) is kind]
    assert decode_part(kind, encode_part(message)) == message


@pytest.mark.parametrize("version", [0, 1, VERSION + 1])
def test_a_message_of_another_version_is_refused(version):
    with pytest.raises(MessageRefused, match="another version"):
        PeerMessage.decode(msgspec.structs.replace(MESSAGE, version=version).encode())


def test_a_message_without_a_version_is_refused():
    before = msgspec.msgpack.encode([b"8 bytes.", 7, {}, False])
    with pytest.raises(MessageRefused):
        PeerMessage.decode(before)


def test_every_part_has_a_type_of_its_own():
    assert len(set(PARTS.values())) == len(PARTS)


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"x", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode([[["a", 1]]])]
)
def test_a_part_that_is_something_else_is_refused(name, data):
    with pytest.raises(MessageRefused):
        decode_part(PARTS[name], data)


@given(data=st.binary(max_size=200) | st.binary(max_size=20).map(lambda more: b"\x95\x02" + more))
def test_any_bytes_are_a_message_or_refused(data):
    for kind in (PeerMessage, *PARTS.values()):
        with suppress(MessageRefused):
            decode_part(kind, data)
    with suppress(MessageRefused):
        PeerMessage.decode(data)
