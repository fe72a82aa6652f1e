"""Replicas from a Kubernetes API, over HTTP."""

import asyncio
import ssl

import pytest
from discovery_fakes import FakeKubernetes, endpoint
from patience import HANG_SECONDS

from gateway.config.discovery_settings import KubernetesSettings, TemplateSettings
from gateway.discovery import kubernetes_source as kubernetes_module
from gateway.discovery.discovered import Condition
from gateway.discovery.kubernetes_source import KubernetesSource

PATH = "/apis/discovery.k8s.io/v1/namespaces/ml/endpointslices"


@pytest.fixture
def source(api, tmp_path):
    """Asks the fake API; the files of a service account are in ``tmp_path``."""

    def make(environ=None, template=None, **settings):
        settings = {
            "service": "vllm",
            "namespace": "ml",
            "api_url": api.url,
            "token_file": tmp_path / "token",
            "ca_file": tmp_path / "ca.crt",
        } | settings
        return KubernetesSource(KubernetesSettings(**settings), template or TemplateSettings(), environ or {})

    return make


def names(found):
    return found if isinstance(found, str) else [each.replica.id.removesuffix(".ml") for each in found]


def is_now(*expected):
    return lambda said: names(said) == list(expected)


async def until(holds):
    async with asyncio.timeout(HANG_SECONDS):
        while not holds():
            await asyncio.sleep(0.01)


async def test_listed_once_and_watched_from_then_on(api, source, listen_to):
    api.put("s-1", endpoint("10.0.0.1", "vllm-0"))
    received = listen_to(source())
    await received.until(is_now("vllm-0"))
    await until(lambda: api.watches == 1)
    api.put("s-1", endpoint("10.0.0.1", "vllm-0"), endpoint("10.0.0.2", "vllm-1"))
    await received.until(is_now("vllm-0", "vllm-1"))
    api.put("s-2", endpoint("10.0.0.3", "vllm-2"))
    await received.until(is_now("vllm-0", "vllm-1", "vllm-2"))
    api.put("s-1", endpoint("10.0.0.1", "vllm-0", ready=False, terminating=True))
    found = await received.until(is_now("vllm-0", "vllm-2"))
    assert [each.condition for each in found] == [Condition.LEAVING, Condition.READY]
    api.delete("s-1")
    await received.until(is_now("vllm-2"))
    assert [path for path, _ in api.asked] == [PATH] * 2
    listed, watched = (query for _, query in api.asked)
    assert listed == {"labelSelector": ["kubernetes.io/service-name=vllm"]}
    assert watched["labelSelector"] == listed["labelSelector"]
    assert watched["resourceVersion"] == ["101"]
    assert watched["allowWatchBookmarks"] == ["true"]


async def test_a_watch_that_breaks_goes_on_where_it_was(api, source, listen_to):
    api.put("s", endpoint("10.0.0.1", "vllm-0"))
    received = listen_to(source())
    await until(lambda: api.watches == 1)
    api.put("s", endpoint("10.0.0.2", "vllm-1"))
    await received.until(is_now("vllm-1"))
    api.drop_watches()
    api.put("s", endpoint("10.0.0.3", "vllm-2"))  # without a watch
    await received.until(is_now("vllm-2"))
    assert api.listed() == 1
    assert api.asked[-1][1]["resourceVersion"] == ["102"]


@pytest.mark.parametrize("how", ["status", "event"])
async def test_what_is_too_old_is_listed_anew(api, source, listen_to, how):
    api.put("s", endpoint("10.0.0.1", "vllm-0"))
    received = listen_to(source())
    await until(lambda: api.watches == 1)
    if how == "status":
        api.slices.clear()
        api.put("t", endpoint("10.0.0.2", "vllm-1"))
        api.compact()
        api.drop_watches()
    else:
        api.slices["s"]["endpoints"] = [endpoint("10.0.0.2", "vllm-1")]
        api.say("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})
    await received.until(is_now("vllm-1"))
    assert api.listed() == 2
    # That the list had to be read again is no failure; that the connection broke may be.
    assert not [said for said in received.said if isinstance(said, str) and "410" in said]


async def test_bookmarks_move_the_version_on(api, source, listen_to):
    api.put("s", endpoint("10.0.0.1", "vllm-0"))
    received = listen_to(source())
    await until(lambda: api.watches == 1)
    api.say("BOOKMARK", {"kind": "EndpointSlice", "metadata": {"resourceVersion": "900"}})
    api.put("s", endpoint("10.0.0.1", "vllm-0", ready=False))
    api.slices["s"]["metadata"]["resourceVersion"] = "901"
    await received.until(lambda said: said[0].condition is Condition.NOT_READY)
    assert api.listed() == 1


async def test_an_error_in_a_watch_has_the_list_read_again(api, source, listen_to):
    api.put("s", endpoint("10.0.0.1", "vllm-0"))
    received = listen_to(source())
    await until(lambda: api.watches == 1)
    api.say("ERROR", {"kind": "Status", "code": 500, "message": "etcd is away"})
    assert "etcd is away" in await received.until(lambda said: isinstance(said, str))
    await until(lambda: api.listed() == 2)
    await received.until(is_now("vllm-0"))


async def test_a_watch_with_invalid_events(api, source, listen_to):
    api.put("s", endpoint("10.0.0.1", "vllm-0"))
    received = listen_to(source())
    await until(lambda: api.watches == 1)
    api.say("MODIFIED", {"metadata": "?"})
    assert "cannot be decoded" in await received.until(lambda said: isinstance(said, str))


async def test_the_token_is_read_for_every_connection(api, source, listen_to, tmp_path):
    api.token = "one"
    api.put("s", endpoint("10.0.0.1", "vllm-0"))
    (tmp_path / "token").write_text("wrong\n")
    received = listen_to(source())
    problem = await received.until(lambda said: isinstance(said, str))
    assert "answered 401: Unauthorized (check that token_file" in problem
    (tmp_path / "token").write_text("one\n")
    await received.until(is_now("vllm-0"))
    api.token = "two"
    (tmp_path / "token").write_text("two\n")
    api.drop_watches()
    api.put("s", endpoint("10.0.0.2", "vllm-1"))
    await received.until(is_now("vllm-1"))
    assert not [said for said in received.said if isinstance(said, str) and ("wrong" in said or "two" in said)]


async def test_what_may_not_be_seen_is_reported_with_what_to_do(api, source, listen_to):
    api.status = 403
    problem = await listen_to(source()).until(lambda said: True)
    assert "answered 403: not now (let the gateway's service account get, list and watch endpointslices" in problem


async def test_an_api_that_is_away(api, source, listen_to):
    received = listen_to(source(api_url="http://127.0.0.1:9"))
    assert "does not answer" in await received.until(lambda said: True)


async def test_running_outside_of_a_cluster_is_reported(source, listen_to):
    assert "set api_url" in await listen_to(source(api_url=None)).until(lambda said: True)
    assert "namespace is not set" in await listen_to(source(namespace=None)).until(lambda said: True)


async def test_inside_of_a_cluster_its_own_api_is_asked(api, source):
    host, port = api.url.removeprefix("http://").split(":")
    made = source({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}, api_url=None)
    client = made._client()
    assert str(client.base_url).rstrip("/") == f"https://{host}:{port}"
    await client.aclose()


async def test_a_service_without_endpoints_is_an_answer_with_nothing(api, source, listen_to):
    assert await listen_to(source()).until(lambda said: True) == []


async def test_authorities_that_cannot_be_read(api, source, listen_to, tmp_path):
    (tmp_path / "ca.crt").write_text("no certificate")
    assert "ca.crt cannot be used" in await listen_to(source()).until(lambda said: True)


async def test_the_cluster_s_own_authority_is_trusted_and_no_other(source, listen_to, tmp_path):
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = await asyncio.create_subprocess_exec(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kubernetes"),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await made.wait() == 0
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(cert, key)
    api = await FakeKubernetes().start(tls)
    try:
        api.put("s", endpoint("10.0.0.1", "vllm-0"))
        received = listen_to(source(api_url=api.url))
        assert "certificate" in await received.until(lambda said: isinstance(said, str))
        assert api.asked == []
        cert.rename(tmp_path / "ca.crt")
        await received.until(is_now("vllm-0"))
    finally:
        await api.stop()


async def test_an_api_that_ends_every_watch_at_once_is_not_overrun(api, source, listen_to):
    api.put("s", endpoint("10.0.0.1", "vllm-0"))
    api.ends_watches = True
    received = listen_to(source())
    await received.until(is_now("vllm-0"))
    await asyncio.sleep(1)
    assert len(api.asked) <= 4
    api.put("s", endpoint("10.0.0.1", "vllm-1"))
    api.ends_watches = False
    await received.until(is_now("vllm-1"))
    assert api.listed() == 1


@pytest.mark.parametrize("when", ["list", "watch"])
async def test_what_the_api_sends_is_bounded(api, source, listen_to, monkeypatch, when):
    monkeypatch.setattr(kubernetes_module, "_MAX_BYTES", 2000, raising=False)
    many = [endpoint(f"10.0.0.{number}", f"vllm-{number}") for number in range(100)]
    api.put("s", *(many if when == "list" else [endpoint("10.0.0.1", "vllm-0")]))
    received = listen_to(source())
    if when == "watch":
        await received.until(is_now("vllm-0"))
        await until(lambda: api.watches == 1)
        api.put("s", *many)
    assert "0 MiB" in await received.until(lambda said: isinstance(said, str))
    assert all(isinstance(said, str) or len(said) == 1 for said in received.said)
