"""Redis watched by sentinels, and Redis as a cluster: the same for a gateway as a single server."""

import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from levels import slow_except
from message_recorder import MessageRecorder
from pydantic import SecretStr
from redis_groups import Cluster, Watched
from redis_server import SECRET, RedisServer

from gateway.cluster.records import RedisRecords

pytestmark = pytest.mark.usefixtures("patient_connections")

PASSWORD = "s3cret"
BLOCKS = {bytes([n]) * 16: f"[context {n}] Customer: Jane Doe" for n in range(1, 40)}


@pytest.fixture(params=[Watched, Cluster])
def group(request, tmp_path: Path) -> Iterator[Watched | Cluster]:
    group = request.param(tmp_path, PASSWORD)
    try:
        group.start()
        yield group
    finally:
        group.kill()


async def test_a_gateway_writes_and_another_reads(group, store_at, soon, errors):
    store_at(group.url).keep(BLOCKS)
    reader = store_at(group.url)

    async def all_there():
        return await reader.fetch(list(BLOCKS)) == BLOCKS

    await soon(all_there)
    assert errors == []


async def test_gateways_receive_messages_of_each_other(group, exchange_at, soon, errors):
    recorders = [MessageRecorder(), MessageRecorder()]
    exchanges = [exchange_at(group.url, part=recorder) for recorder in recorders]
    await soon(lambda: all(exchange.peers == 1 for exchange in exchanges))
    recorders[0].sends(b"hello")
    await soon(lambda: b"hello" in recorders[1].received)
    assert errors == []


async def test_records_are_kept(group, errors):
    first, second = (RedisRecords(SecretStr(group.url), SECRET, "things", errors.append) for _ in range(2))
    assert await first.write({"a": b"1", "b": b"2"}) is False
    assert await second.write({"b": None, "c": b"3"}) is True
    assert await first.read() == {"a": b"1", "c": b"3"}
    await first.close()
    await second.close()
    assert errors == []


async def test_a_master_dies_and_its_copy_takes_its_place(group, store_at, exchange_at, soon, errors, logs):
    store = store_at(group.url, deadline_seconds=0.5)
    recorders = [MessageRecorder(), MessageRecorder()]
    exchanges = [exchange_at(group.url, part=recorder) for recorder in recorders]
    await soon(lambda: all(exchange.peers == 1 for exchange in exchanges))
    store.keep(BLOCKS)

    async def readable():
        return await store.fetch(list(BLOCKS)) == BLOCKS

    await soon(readable)
    group.kill_a_master()
    more = {bytes([n]) * 16: f"[context {n}]" for n in range(100, 140)}
    store.keep(more)

    async def written():
        return await store.fetch(list(more)) == more

    await soon(written)
    await soon(lambda: all(exchange.peers == 1 for exchange in exchanges))
    recorders[1].sends(b"still there")
    await soon(lambda: b"still there" in recorders[0].received)
    assert {each["event"] for each in logs} <= {"state_store_failed", "state_store_recovered"}


@pytest.mark.parametrize("way", [Watched, Cluster])
async def test_a_wrong_password_is_reported_and_not_shown(way, tmp_path, store_at, soon, logs):
    group = way(tmp_path, PASSWORD)
    try:
        group.start()
        store = store_at(group.url.replace(PASSWORD, "wrong-one"), deadline_seconds=5)
        assert await store.fetch(list(BLOCKS)) == {}
        await soon(lambda: [each for each in logs if each["event"] == "state_store_failed"])
        assert "wrong-one" not in str(logs)
    finally:
        group.kill()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A folder with a certificate for 127.0.0.1 that vouches for itself."""
    folder = tmp_path / "tls"
    folder.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "redis")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )
    return folder


class Single(RedisServer):
    """One server, with TLS."""

    def __init__(self, folder: Path, password: str, tls: Path) -> None:
        super().__init__(folder, "--requirepass", password, tls=tls)
        self.url = f"rediss://:{password}@127.0.0.1:{self.port}/0?ssl_ca_certs={tls}/cert.pem"


@pytest.mark.parametrize("way", slow_except([Single, Watched, Cluster], {Single}))
async def test_all_connections_are_encrypted_where_the_url_says_so(
    way, tmp_path, certificate, store_at, exchange_at, soon, errors
):
    group = way(tmp_path, PASSWORD, certificate)
    try:
        group.start()
        store = store_at(group.url)
        store.keep(BLOCKS)

        async def readable():
            return await store.fetch(list(BLOCKS)) == BLOCKS

        await soon(readable)
        exchanges = [exchange_at(group.url, part=MessageRecorder()) for _ in range(2)]
        await soon(lambda: all(exchange.peers == 1 for exchange in exchanges))
        errors.clear()
        other = store_at(group.url.partition("?")[0])  # which trusts others
        assert await other.fetch(list(BLOCKS)) == {}
        assert errors
    finally:
        group.kill()
