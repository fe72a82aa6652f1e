"""Salts, external caches, and engines that turn requests away, at engines that are scripted."""

import asyncio
import json
from collections import Counter

import pytest
from examined_settings import examined, names, only, settings_for

from gateway.evaluation.doctor.doctor_finding import Severity

CHAT = "/v1/chat/completions"
SECRET = "what all gateways have in common"
ISOLATED = {"isolation": "tenant", "secret": SECRET}
PAGE = """
vllm:num_requests_running{engine="0"} 0.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",enable_prefix_caching="True",engine="0"} 1.0
"""
CHUNK = 256
OTHERS = ("events-off", "prompt-length-differs")  # it counts words


class Engine:
    """An engine by its documents, with a prefix cache, and beside it one that knows no salts and keeps whole chunks."""

    def __init__(self, *, page=PAGE, external=None, flushes="/reset_prefix_cache", context=32768, **documents):
        self.documents = {"/health": "", "/metrics": page, "/v1/models": self.models(context)}
        self.documents |= {f"/{name}": document for name, document in documents.items()}
        self.status = {}
        self.location = ""
        self.asked = Counter()
        self.prompts = []
        self._external = external
        self._flushes = flushes
        self._held = set()
        self._chunks = set()

    @staticmethod
    def models(context):
        return {"object": "list", "data": [{"id": "demo", "root": "demo", "max_model_len": context}]}

    async def start(self, closing):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        closing.callback(server.close)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return self

    async def _serve(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next((int(x.split(":")[1]) for x in head.lower().split("\r\n") if "content-length" in x), 0)
                body = await reader.readexactly(length)
                path = head.split(" ")[1].partition("?")[0]
                self.asked[path] += 1
                status, answer = self._answer(path, body)
                text = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
                more = f"location: {self.location}{path}\r\n" if 300 <= status < 400 else ""
                writer.write(f"HTTP/1.1 {status} X\r\n{more}content-length: {len(text)}\r\n\r\n".encode() + text)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _answer(self, path, body):
        if path in self.status or "*" in self.status:
            return self.status.get(path) or self.status["*"], {}
        if path == self._flushes:
            self._held.clear()
            return 200, {"success": True}
        if path == CHAT:
            return 200, self._chat(json.loads(body))
        return (200, self.documents[path]) if path in self.documents else (404, {})

    def _chat(self, fields):
        words = fields["messages"][0]["content"].split(" ")
        self.prompts.append(len(words))
        salt, prompt = fields["cache_salt"], tuple(words)
        cached = len(words) // 16 * 16 if (salt, prompt) in self._held else 0
        if self._external is not None and not cached and (self._external(salt), prompt) in self._chunks:
            cached = len(words) // CHUNK * CHUNK
        self._held.add((salt, prompt))
        if self._external is not None and len(words) >= CHUNK:
            self._chunks.add((self._external(salt), prompt))
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        return {"usage": {"prompt_tokens": len(words), "completion_tokens": 1, **details}}


def settings(engine, **model):
    return settings_for(engine, model={"replicas": [{"url": engine.url, "id": "r0", "events": "off", **model}]},
                        spaces=ISOLATED)  # fmt: skip


async def found(engine, **replica):
    diagnosis = await examined(settings(engine, **replica))
    return {each.name: each for each in diagnosis.findings if each.name not in OTHERS}, diagnosis


async def test_isolation_that_holds(closing):
    engine = await Engine().start(closing)
    findings, diagnosis = await found(engine)
    assert findings == {}
    (shown,) = diagnosis.shown
    assert shown.startswith("replica r0: isolation holds: of a prompt of 4096 words, 4096 tokens")
    assert shown.endswith("none with another, nor once its cache is cleared")
    assert all(length >= 4096 for length in engine.prompts)


@pytest.mark.parametrize(("context", "least", "most"), [(8192, 4096, 4200), (4096, 3000, 4000), (1024, 700, 1000)])
async def test_the_prompt_is_as_long_as_the_context_allows(closing, context, least, most):
    engine = await Engine(context=context).start(closing)
    await found(engine)
    assert all(least <= length < most for length in engine.prompts)
    assert len(engine.prompts) == 4


async def test_an_external_cache_that_drops_the_salt(closing):
    engine = await Engine(page=PAGE + "lmcache:retrieve_hit_rate 0.5\n", external=lambda salt: "").start(closing)
    findings, diagnosis = await found(engine)
    assert set(findings) == {"salt-ignored", "external-cache"}
    assert findings["salt-ignored"].severity is Severity.ERROR
    assert "isolation does not hold" in findings["salt-ignored"].said
    assert "LMCache" in findings["external-cache"].said
    assert diagnosis.shown == []


async def test_an_external_cache_that_keeps_the_salt(closing):
    engine = await Engine(page=PAGE + "lmcache:retrieve_hit_rate 0.5\n", external=lambda salt: salt).start(closing)
    findings, diagnosis = await found(engine)
    assert set(findings) == {"external-cache"}
    assert "nor once its cache is cleared" in diagnosis.shown[0]


async def test_a_cache_that_cannot_be_cleared_is_said(closing):
    page = PAGE + "vllm:external_prefix_cache_queries_total 7.0\n"
    engine = await Engine(page=page, flushes="", external=lambda salt: salt).start(closing)
    findings, diagnosis = await found(engine)
    assert set(findings) == {"external-cache"}
    assert diagnosis.shown[0].endswith("none with another")
    (said,) = diagnosis.unchecked[-1:]
    assert "once the GPU has lost a prefix" in said
    assert "VLLM_SERVER_DEV_MODE=1" in said


@pytest.mark.parametrize(
    ("documents", "name"),
    [
        ({"page": PAGE + "vllm:nixl_num_failed_transfers_total 0.0\n"}, "NIXL"),
        ({"page": PAGE + "vllm:kv_offload_load_bytes_total 0.0\n"}, "OffloadingConnector"),
        ({"page": PAGE + "vllm:external_prefix_cache_queries_total 5.0\n"}, "a KV connector"),
        ({"server_info": {"vllm_config": {"kv_transfer_config": {"kv_connector": "MooncakeConnector"}}}}, "Mooncake"),
    ],
)
async def test_external_caches_are_seen(closing, documents, name):
    findings, _ = await found(await Engine(**documents).start(closing))
    assert name in findings["external-cache"].said


@pytest.mark.parametrize(
    "documents",
    [
        {"page": PAGE + "vllm:external_prefix_cache_queries_total 0.0\n"},
        {"server_info": {"vllm_config": {"kv_transfer_config": None}}},
        {"server_info": {"vllm_config": "kv_transfer_config=None"}},
        {"server_info": [1]},
    ],
)
async def test_engines_without_an_external_cache(closing, documents):
    assert (await found(await Engine(**documents).start(closing)))[0] == {}


SGLANG = "\nsglang:num_running_reqs 0.0\nsglang:max_total_num_tokens 99999.0\nsglang:page_size 16.0\n"
ARGUMENTS = {"enable_cache_report": True, "disable_radix_cache": False, "version": "0.5.23", "model_path": "demo"}


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"enable_lmcache": True}, "LMCache"),
        ({"enable_hierarchical_cache": True, "hicache_storage_backend": "mooncake"}, "mooncake"),
        ({"enable_hierarchical_cache": True, "hicache_storage_backend": None}, "HiCache"),
    ],
)
async def test_external_caches_of_sglang(closing, more, name):
    engine = await Engine(page=SGLANG, flushes="/flush_cache", server_info=ARGUMENTS | more).start(closing)
    findings, diagnosis = await found(engine)
    assert name in findings["external-cache"].said
    assert engine.asked["/flush_cache"] == 1
    assert "nor once its cache is cleared" in diagnosis.shown[0]


async def test_the_cache_of_an_sglang_without_another_one_is_not_cleared(closing):
    engine = await Engine(page=SGLANG, flushes="/flush_cache", server_info=ARGUMENTS).start(closing)
    findings, diagnosis = await found(engine)
    assert findings == {}
    assert engine.asked["/flush_cache"] == 0
    assert diagnosis.shown[0].endswith("none with another")


@pytest.mark.parametrize("path", ["/health", "/v1/models", "*"])
async def test_an_address_that_redirects(closing, path):
    engine = await Engine().start(closing)
    engine.status[path], engine.location = 307, "https://final.example.com"
    finding = only(await examined(settings(engine)))
    assert (finding.name, finding.severity) == ("replica-redirects", Severity.ERROR)
    assert "https://final.example.com." in finding.said
    assert "url of models[0].replicas[0]" in finding.fix


async def test_requests_that_are_redirected(closing):
    engine = await Engine().start(closing)
    engine.status[CHAT] = 308
    assert "replica-redirects" in (await found(engine))[0]


@pytest.mark.parametrize("path", ["/v1/models", "*", CHAT])
@pytest.mark.parametrize(("key", "said"), [(None, "is not set"), ("wrong", "is not the engine's")])
async def test_a_key_that_is_refused(closing, path, key, said):
    engine = await Engine().start(closing)
    engine.status[path] = 401
    findings, _ = await found(engine, api_key=key)
    (finding,) = findings.values()
    assert (finding.name, finding.severity, finding.where) == ("key-refused", Severity.ERROR, "replica r0")
    assert f"api_key of models[0].replicas[0] {said}" in finding.said


async def test_an_engine_that_sleeps_gets_no_requests(closing):
    engine = await Engine(is_sleeping={"is_sleeping": True}).start(closing)
    findings, _ = await found(engine)
    assert set(findings) == {"engine-sleeping"}
    assert "/wake_up" in findings["engine-sleeping"].fix
    assert engine.prompts == []
    awake = await Engine(is_sleeping={"is_sleeping": False}).start(closing)
    assert (await found(awake))[0] == {}


async def test_an_engine_that_refuses_long_prompts_gets_short_ones(start_engine):
    engine = await start_engine(max_model_len=300)
    diagnosis = await examined(settings_for(engine))
    assert names(diagnosis) == []
    assert "isolation holds" in diagnosis.shown[0]
