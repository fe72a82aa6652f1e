"""Replicas behind TLS: an authority of their own, and client certificates."""

import asyncio
import contextlib
import ssl

import pytest
from running_gateway import eventually, settings_for

from gateway.config.replica_settings import ReplicaSettings


async def _openssl(*arguments: str) -> None:
    made = await asyncio.create_subprocess_exec("openssl", *arguments, stderr=asyncio.subprocess.DEVNULL)
    assert await made.wait() == 0


class Authority:
    """Certificates of one authority in a folder."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder = folder
        self.ca = folder / "ca.pem"

    async def begin(self):
        subject = ("-subj", f"/CN={self.folder.name} authority")
        files = ("-keyout", str(self.folder / "ca.key"), "-out", str(self.ca))
        await _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files)
        return self

    async def sign(self, name):
        """A certificate for localhost, and its key."""
        key, request, cert = (self.folder / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
        names = self.folder / "names"
        names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
        files = ("-keyout", str(key), "-out", str(request))
        await _openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", *files)
        by = ("-CA", str(self.ca), "-CAkey", str(self.folder / "ca.key"), "-CAcreateserial", "-extfile", str(names))
        await _openssl("x509", "-req", "-in", str(request), *by, "-days", "2", "-out", str(cert))
        return cert, key


@pytest.fixture
async def authority(tmp_path):
    return await Authority(tmp_path / "own").begin()


@pytest.fixture
async def encrypted():
    """Puts TLS before engines; returns the URL."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(engine, cert, key, *, clients=None):
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=clients)
            context.load_cert_chain(cert, key)
            if clients is not None:
                context.verify_mode = ssl.CERT_REQUIRED
            host, port = engine.url.removeprefix("http://").split(":")

            async def copy(reader, writer):
                with contextlib.suppress(OSError):
                    while data := await reader.read(65536):
                        writer.write(data)
                writer.close()

            async def serve(reader, writer):
                inner_reader, inner_writer = await asyncio.open_connection(host, port)
                await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

            server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
            stack.callback(server.close)
            return f"https://localhost:{server.sockets[0].getsockname()[1]}"

        yield start


async def _up(gateway, up=True):
    async def checked() -> bool:
        return (await gateway.replicas())["tls"]["up"] is up

    await eventually(checked)


async def test_replica_with_an_own_authority(start_engine, start_gateway, authority, encrypted):
    url = await encrypted(await start_engine(), *await authority.sign("engine"))
    trusted = await start_gateway(model={"replicas": [{"url": url, "id": "tls", "ca_file": str(authority.ca)}]})
    await _up(trusted)
    assert (await trusted.ask()).status_code == 200
    other = await start_gateway(model={"replicas": [{"url": url, "id": "tls"}]})
    await _up(other, up=False)


async def test_replica_that_asks_for_a_certificate(start_engine, start_gateway, authority, encrypted):
    url = await encrypted(await start_engine(), *await authority.sign("engine"), clients=authority.ca)
    cert, key = await authority.sign("gateway")
    replica = {"url": url, "id": "tls", "ca_file": str(authority.ca)}
    known = await start_gateway(model={"replicas": [replica | {"cert_file": str(cert), "key_file": str(key)}]})
    await _up(known)
    assert (await known.ask()).status_code == 200
    both = cert.with_name("both.pem")
    both.write_text(cert.read_text() + key.read_text())
    together = await start_gateway(model={"replicas": [replica | {"cert_file": str(both)}]})
    await _up(together)
    unknown = await start_gateway(model={"replicas": [replica]})
    await _up(unknown, up=False)


async def test_changed_files_are_read_again(start_engine, start_gateway, authority, encrypted, tmp_path):
    stranger = await Authority(tmp_path / "stranger").begin()
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(stranger.ca.read_bytes())
    url = await encrypted(await start_engine(), *await authority.sign("engine"))
    sections = {
        "model": {"replicas": [{"url": url, "id": "tls", "ca_file": str(trusted)}]},
        "relay": {"health_interval_seconds": 0.05},
    }
    gateway = await start_gateway(**sections)
    await _up(gateway, up=False)
    trusted.write_bytes(authority.ca.read_bytes())
    await gateway.gateway.reload(settings_for([], **sections))
    await _up(gateway)
    assert (await gateway.ask()).status_code == 200


async def test_files_are_checked_at_the_start(authority, tmp_path):
    cert, key = await authority.sign("gateway")
    stranger, _ = await authority.sign("stranger")
    locked, empty = tmp_path / "locked.key", tmp_path / "empty.pem"
    await _openssl("rsa", "-aes256", "-passout", "pass:secret", "-in", str(key), "-out", str(locked))
    empty.write_text("nothing")
    ReplicaSettings(url="https://a", ca_file=authority.ca, cert_file=cert, key_file=key)
    for field, problem, fields in [
        ("ca_file", "no such file", {"ca_file": tmp_path / "none.pem"}),
        ("ca_file", "no certificate in PEM form", {"ca_file": empty}),
        ("cert_file", "no certificate in PEM form", {"cert_file": empty, "key_file": key}),
        ("cert_file", "no such file", {"cert_file": tmp_path / "none.pem"}),
        ("key_file", "no unencrypted key of cert_file", {"cert_file": cert}),
        ("key_file", "no unencrypted key of cert_file", {"cert_file": cert, "key_file": locked}),
        ("key_file", "no unencrypted key of cert_file", {"cert_file": stranger, "key_file": key}),
        ("key_file", "only used beside a valid cert_file", {"key_file": key}),
        ("url", "only used with https", {"url": "http://a", "ca_file": authority.ca}),
    ]:
        with pytest.raises(ValueError, match=rf"\n{field}\n.*{problem}"):
            ReplicaSettings(**({"url": "https://a"} | fields))


async def test_files_that_changed_are_checked_again(authority, tmp_path):
    (cert, key), (_, stranger) = await authority.sign("gateway"), await authority.sign("stranger")
    fields = {"url": "https://a", "cert_file": cert, "key_file": key}
    ReplicaSettings(**fields)
    right = key.read_bytes()
    key.write_bytes(stranger.read_bytes())
    with pytest.raises(ValueError, match="no unencrypted key of cert_file"):
        ReplicaSettings(**fields)
    key.write_bytes(right)
    ReplicaSettings(**fields)
