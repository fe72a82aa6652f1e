"""Simulated engines and a gateway over real sockets, and what a scenario does with them."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from running_gateway import CHAT, COMPLETIONS, RunningGateway, eventually
from scenario_file import Scenario, name_of, words
from tenancy import SECRET, key, tenant
from tokens import encoder

from gateway.config.settings import Settings
from gateway.simulator import simulated_engine as server
from gateway.simulator.config import EngineConfig
from gateway.simulator.simulated_engine import SimulatedEngine

_QUICK = {"prefill_rate": 1e6, "decode_ms": 0.0}
_SECONDS = 10.0


class ScenarioRun:
    """What runs while a scenario is played.

    Attributes:
        gateway: The gateway.
        engines: By the ids of their replicas: r0, r1 and so on.
        answers: What was answered to each request, as text.
        usage: The usage that each answer reported, empty for none.
        homes: Which replica answered it.
        compared: ``x-gateway-explained`` of its answer, and its decision, for those in ``named``.
        named: The earlier request that a request names in ``x-gateway-explain``, by its id.
    """

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self.engines: dict[str, SimulatedEngine] = {}
        self.answers: dict[str, str] = {}
        self.usage: dict[str, Mapping[str, Any]] = {}
        self.homes: dict[str, str] = {}
        self.compared: dict[str, Mapping[str, Any]] = {}
        self.named: dict[str, str] = {}
        self._folder = folder
        self._template: str | None = scenario.data.get("template")
        self._begun: dict[str, asyncio.Task[None]] = {}
        self._seeds = itertools.count(10_000)
        self._acts: Mapping[str, Callable[[Any, Mapping[str, Any]], Awaitable[None]]] = {
            "send": lambda _, step: self._send(step),
            "together": lambda steps, _: self._together(steps),
            "begin": lambda _, step: self._begin(step),
            "finish": lambda name, _: self._begun[name],
            "restart": self.restart,
            "kill": self._kill,
            "start": self._start,
            "fault": self._fault,
            "abandon": lambda _, step: self._abandon(step),
            "straight": self._straight,
            "fill": self._fill,
            "break": lambda _, __: self._break_index(),
            "forget": lambda _, __: self._forget(),
            "reset": lambda selection, _: self._reset(selection),
            "drain": lambda name, _: self._drain(name),
            "reload": lambda sections, _: self._reload(sections),
            "update": self._update,
            "template": lambda text, _: self._roll_out(text),
            "received": lambda _, __: self._received(),
            "pause": lambda seconds, _: asyncio.sleep(seconds),
        }

    async def open(self, closing: contextlib.AsyncExitStack) -> None:
        """Start everything."""
        options = self.scenario.data.get("engines", [{}])
        for number, each in enumerate(options):
            engine = await self._engine(each)
            self.engines[f"r{number}"] = engine
        closing.push_async_callback(self._kill_all)
        self.gateway = RunningGateway(self._settings(self.scenario.data.get("gateway", {})))
        await self.gateway.start()
        closing.push_async_callback(self.gateway.stop)
        if any(each.get("events") for each in options):
            await self._live()

    async def play(self) -> None:
        """Do every step."""
        for step in self.scenario.steps:
            (act,) = step.keys() & self._acts.keys()
            placed = self._placed(step)
            await self._acts[act](placed[act], placed)
        assert all(task.done() for task in self._begun.values()), "a request was begun and not finished"

    async def detail(self, name: str) -> Mapping[str, Any]:
        """What the admin port reports of a request, as soon as it does."""
        found: httpx.Response | None = None

        async def there() -> bool:
            nonlocal found
            found = await self.gateway.admin.get(f"/admin/api/requests/{name}")
            return found.status_code == 200

        try:
            await eventually(there, _SECONDS)
        except AssertionError:
            assert found is not None
            raise AssertionError(f"{name} is not explained: {found.status_code} {found.text[:300]}") from None
        assert found is not None
        detail: Mapping[str, Any] = found.json()
        return detail

    async def summary(self) -> Mapping[str, Any]:
        """The summary of all models and tenants."""
        answer = await self.gateway.admin.get("/admin/api/summary", params={"window": "15m"})
        assert answer.status_code == 200, answer.text
        summary: Mapping[str, Any] = answer.json()
        return summary

    async def restart(self, name: str, step: Mapping[str, Any] | None = None) -> None:
        """The engine's process is a new one; the gateway notices unless its checks are an hour apart."""
        self.engines[name].replace_model(restart=True)
        if step is None or step.get("noticed", True):
            await self._index_of(name, lambda index: index["blocks"] == 0)

    async def _engine(self, options: Mapping[str, Any], **more: Any) -> SimulatedEngine:
        template = self._template
        with pytest.MonkeyPatch.context() as patch:
            if template is not None:
                patch.setattr(server, "_encoder", lambda _: encoder(template=template))
            engine = SimulatedEngine(EngineConfig(**_QUICK | options | more))
        await engine.start()
        return engine

    async def _kill_all(self) -> None:
        for engine in self.engines.values():
            await engine.kill()

    def _settings(self, sections: Mapping[str, Any]) -> Settings:
        data = {name: value for name, value in sections.items() if name not in ("model", "models", "tenants")}
        more = sections.get("model", {})
        options = more.get("replicas", [{}] * len(self.engines))
        replicas = [
            {"url": engine.url, "id": name} | its
            for (name, engine), its in zip(self.engines.items(), options, strict=True)
        ]
        demo = {"id": "demo", "tokenizer": "builtin:demo", "replicas": replicas}
        if self._template is not None:
            file = self._folder / "chat_template.jinja"
            file.write_text(self._template, encoding="utf-8")
            demo["chat_template"] = str(file)
        demo |= {name: value for name, value in more.items() if name != "replicas"}
        data["models"] = [
            demo | each | {"replicas": [replicas[number] for number in each["replicas"]]}
            for each in sections.get("models", [{"replicas": range(len(replicas))}])
        ]
        if "tenants" in sections:
            named = [{"id": each} if isinstance(each, str) else each for each in sections["tenants"]]
            data["tenants"] = [self._tenant(each) for each in named]
            data["spaces"] = {"secret": SECRET} | data.get("spaces", {})
        data["relay"] = {
            "health_interval_seconds": 60,
            "health_timeout_seconds": 30,
            "slow_start_seconds": 0,
        } | data.get("relay", {})
        data["log"] = {"requests": False} | data.get("log", {})
        data["explain"] = {"enabled": True, "max_cpu_share": None, "observed_share": 1} | data.get("explain", {})
        return Settings.model_validate(data)

    @staticmethod
    def _tenant(reported: Mapping[str, Any]) -> dict[str, Any]:
        """A tenant's settings; options of its key stand under ``key``."""
        settings = tenant(reported["id"]) | {name: value for name, value in reported.items() if name != "key"}
        settings["keys"] = [each | reported.get("key", {}) for each in settings["keys"]]
        return settings

    def _placed(self, step: Mapping[str, Any]) -> Mapping[str, Any]:
        """The step with the replica's id where it says ``@NAME``: the replica that answered that request."""
        return {
            field: self.homes[value[1:]] if isinstance(value, str) and value.startswith("@") else value
            for field, value in step.items()
        }

    async def _send(self, send: Mapping[str, Any]) -> None:
        name, path, body, headers = self._request(send)
        answer = await self.gateway.http.post(path, json=body, headers=headers)
        assert answer.status_code == send.get("status", 200), answer.text
        if answer.status_code != 200:
            return
        self.answers[name], self.usage[name] = _read(answer, streamed=bool(send.get("stream")))
        self.homes[name] = answer.headers["x-gateway-replica"]
        if name in self.named:
            decision = {"decision": answer.headers["x-gateway-decision"]}
            self.compared[name] = orjson.loads(answer.headers["x-gateway-explained"]) | decision
        await self.detail(name)  # so that it counts as over for the requests that follow

    async def _abandon(self, send: Mapping[str, Any]) -> None:
        """Send it as a stream, and go away with the first piece of the answer."""
        name, path, body, headers = self._request(send)
        body["stream"] = True
        async with self.gateway.http.stream("POST", path, json=body, headers=headers) as answer:
            assert answer.status_code == 200
            await anext(answer.aiter_bytes())
        self.answers[name], self.usage[name] = "", {}
        await self.detail(name)

    async def _straight(self, name: str, step: Mapping[str, Any]) -> None:
        """A request of a client that does not use the gateway."""
        body = self.scenario.body(step, self.answers)
        async with httpx.AsyncClient(base_url=self.engines[name].url, timeout=_SECONDS) as client:
            answer = await client.post(_path(step), json=body)
            assert answer.status_code == 200, answer.text

    def _request(self, send: Mapping[str, Any]) -> tuple[str, str, dict[str, Any], dict[str, str]]:
        """Name, path, body and headers."""
        name = name_of(send)
        headers = {"x-request-id": name} | send.get("headers", {})
        if name in self.named:
            headers["x-gateway-explain"] = self.named[name]
        for field, header in (("session", "x-session-id"), ("client", "x-client")):
            if field in send:
                headers[header] = send[field]
        if "tenant" in send:
            headers["authorization"] = f"Bearer {key(send['tenant'])}"
        return name, _path(send), self.scenario.body(send, self.answers), headers

    async def _together(self, sends: Sequence[Mapping[str, Any]]) -> None:
        await asyncio.gather(*map(self._send, sends))

    async def _begin(self, send: Mapping[str, Any]) -> None:
        """Send it, and wait until an engine computes it."""
        before = self._running()
        self._begun[send["begin"]] = asyncio.create_task(self._send(send))
        await eventually(lambda: self._running() > before, _SECONDS)

    def _running(self) -> int:
        ranks = itertools.chain.from_iterable(engine.ranks.all for engine in self.engines.values())
        return sum(rank.scheduler.running + rank.scheduler.waiting for rank in ranks)

    async def _kill(self, name: str, step: Mapping[str, Any]) -> None:
        await self.engines[name].kill()
        if step.get("noticed", True):
            await self._state_of(name, "ejected")

    async def _start(self, name: str, step: Mapping[str, Any]) -> None:
        """A new process on the same port, with an empty cache."""
        config = self.engines[name].config
        options = {field: getattr(config, field) for field in config.__dataclass_fields__}
        more = {"port": self.engines[name].port} | step.get("with", {})
        self.engines[name] = await self._engine(options, **more)
        if step.get("noticed", True):
            await self._state_of(name, "ready")

    async def _fault(self, specs: str, step: Mapping[str, Any]) -> None:
        await self.engines[step["at"]].set_fault(specs)

    async def _fill(self, name: str, step: Mapping[str, Any]) -> None:
        """Other traffic, straight to the engine."""
        async with httpx.AsyncClient(base_url=self.engines[name].url, timeout=_SECONDS) as client:
            for _ in range(step["prompts"]):
                body = {"model": "demo", "prompt": words(step["words"], next(self._seeds)), "max_tokens": 1}
                answer = await client.post(COMPLETIONS, json=body)
                assert answer.status_code == 200, answer.text

    async def _break_index(self) -> None:
        def broken(*_: object) -> None:
            raise RuntimeError("the index is broken")

        self.gateway.gateway._index.holdings = broken  # type: ignore[method-assign]

    async def _forget(self) -> None:
        """The context blocks of all conversations are gone, as after a restart without shared state."""
        self.gateway.gateway._canon._memory.clear()

    async def _reset(self, selection: Mapping[str, Any]) -> None:
        answer = await self.gateway.admin.post("/admin/api/spaces/reset", json=selection)
        assert answer.status_code == 200, answer.text

    async def _drain(self, name: str) -> None:
        answer = await self.gateway.admin.post("/admin/api/replicas/drain", json={"replica": name, "drain": True})
        assert answer.status_code == 200, answer.text

    async def _reload(self, sections: Mapping[str, Any]) -> None:
        """Other settings, as after a change of the file."""
        await self.gateway.gateway.reload(self._settings(self.scenario.data.get("gateway", {}) | sections))

    async def _update(self, name: str, step: Mapping[str, Any]) -> None:
        """A restart with another model or release; the gateway notices."""
        before = await self._resets()
        self.engines[name].replace_model(**step["to"], restart=True)

        async def noticed() -> bool:
            return await self._resets() > before

        await eventually(noticed, _SECONDS)

    async def _roll_out(self, template: str) -> None:
        """Another chat template: the engines are started anew with it, and the gateway's file is changed."""
        self._template = template
        for name in self.engines:
            await self.engines[name].kill()
            await self._start(name, {"noticed": False})
        await self._reload({})

    async def _resets(self) -> float:
        return (await self.gateway.metrics()).value("gateway_resets_total")

    async def _live(self) -> None:
        async def live() -> bool:
            replicas = await self.gateway.replicas()
            publishing = [name for name, engine in self.engines.items() if engine.event_endpoints]
            feeds = [feed for name in publishing for feed in replicas[name]["events"]]
            return bool(feeds) and all(feed["state"] == "live" for feed in feeds)

        await eventually(live, _SECONDS)

    async def _received(self) -> None:
        """Wait until the gateway has taken in every event that was published."""

        async def all_of_it() -> bool:
            replicas = await self.gateway.replicas()
            for name, engine in self.engines.items():
                published = [rank.publisher.next_number for rank in engine.ranks.all if rank.publisher]
                if published and [feed["next_sequence"] for feed in replicas[name]["events"]] != published:
                    return False
            return True

        await eventually(all_of_it, _SECONDS)

    async def _state_of(self, name: str, state: str) -> None:
        async def so() -> bool:
            return bool((await self.gateway.replicas())[name]["state"] == state)

        await eventually(so, _SECONDS)

    async def _index_of(self, name: str, holds: Callable[[Mapping[str, Any]], bool]) -> None:
        async def so() -> bool:
            return holds((await self.gateway.replicas())[name]["index"])

        await eventually(so, _SECONDS)


def _path(step: Mapping[str, Any]) -> str:
    return CHAT if "chat" in step else COMPLETIONS


def _read(answer: httpx.Response, *, streamed: bool) -> tuple[str, Mapping[str, Any]]:
    """Text of the first choice, and the usage."""
    if not streamed:
        reported = answer.json()
        choice = reported["choices"][0]
        return choice.get("text") or choice.get("message", {}).get("content") or "", reported.get("usage") or {}
    text, usage = "", {}
    for line in answer.text.splitlines():
        if line.startswith("data: {"):
            chunk = orjson.loads(line.removeprefix("data: "))
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return text, usage
