"""The image is built and the compose stack runs on simulated engines: ``make test-containers``.

Needs docker or podman (with podman-compose), and an image registry. From the environment:

* ``CONTAINER_TOOL``: docker or podman, where both work.
* ``CONTAINER_BUILD_OPTIONS``: further options of the build, where it needs some to reach a package index.
* ``WITHOUT``: services to leave out, such as ``grafana``.
* ``WITHOUT_DIGESTS=1``: images are taken by their tags alone, where local ones stand in for those of a registry.
* ``KEEP=1``: the stack is left running.
"""

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import yaml

from benchmarks.free_ports import free_port
from tests.deploy.container_tool import NoContainerTool, container_tool

ROOT = Path(__file__).parents[2]
PROJECT = "prefix-gateway-test"
IMAGE = "prefix-gateway:test"
READY_SECONDS = 120
PROMPT = "You answer for the shop of Example & Sons. " * 60
GATEWAYS = ("gateway-0", "gateway-1")


class Failed(Exception):
    """What was seen is not what has to be."""


class Stack:
    """The compose stack, on free ports of this machine."""

    def __init__(self) -> None:
        try:
            self.tool = container_tool()
        except NoContainerTool as error:
            raise Failed(str(error)) from error
        here = Path(sys.executable).parent / "podman-compose"
        podman_compose = shutil.which("podman-compose") or (str(here) if here.exists() else None)
        compose = [podman_compose] if self.tool == "podman" and podman_compose else [self.tool, "compose"]
        self._compose = [*compose, "-p", PROJECT, "--profile", "cpu"]
        names = ("PORT", "ADMIN_PORT_0", "ADMIN_PORT_1", "PROMETHEUS_PORT", "GRAFANA_PORT")
        self.ports = {name: free_port() for name in names}
        self._env = (
            os.environ | {name: str(port) for name, port in self.ports.items()} | {"PREFIX_GATEWAY_IMAGE": IMAGE}
        )
        compose_file = (ROOT / "docker-compose.yml").read_text()
        base = re.search(r"^ARG PYTHON_IMAGE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
        assert base is not None
        self.base = base[1]
        if os.environ.get("WITHOUT_DIGESTS"):
            self.base = self.base.partition("@")[0]
            self._env |= dict(re.findall(r"\$\{(\w+_IMAGE):-([^@}]+)@", compose_file))
        every = yaml.safe_load(compose_file)["services"]
        left_out = os.environ.get("WITHOUT", "").replace(",", " ").split()
        self.services = [
            name for name, reported in every.items() if reported.get("profiles") != ["gpu"] and name not in left_out
        ]

    def build(self) -> None:
        options = shlex.split(os.environ.get("CONTAINER_BUILD_OPTIONS", ""))
        base = f"PYTHON_IMAGE={self.base}"
        _run([self.tool, "build", *options, "--build-arg", base, "--tag", IMAGE, str(ROOT)], self._env)

    def image_bytes(self) -> dict[str, int]:
        """Size of the image, and of what this project's Dockerfile adds to its base."""
        sizes = [json.loads(self.ask("image", "inspect", image))[0]["Size"] for image in (IMAGE, self.base)]
        return {"all": sizes[0], "added": sizes[0] - sizes[1]}

    def up(self) -> None:
        _run([*self._compose, "up", "--detach", "--no-build", *self.services], self._env)

    def down(self) -> None:
        _run([*self._compose, "down", "--volumes"], self._env, check=False)

    def logs(self) -> str:
        reported = []
        for service in self.services:
            for container in self._containers(service):
                said = subprocess.run(
                    [self.tool, "logs", "--tail", "40", container], capture_output=True, text=True, check=False
                )
                reported.append(f"=== {service}\n{said.stdout}{said.stderr}")
        return "\n".join(reported)

    def container(self, service: str) -> str:
        found = self._containers(service)
        if len(found) != 1:
            raise Failed(f"{service} has {len(found)} containers")
        return found[0]

    def ask(self, *words: str) -> str:
        """What the container tool says."""
        return _run([self.tool, *words], self._env, quiet=True)

    def inside(self, service: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.tool, "exec", self.container(service), *words], capture_output=True, text=True, check=False
        )

    def _containers(self, service: str) -> list[str]:
        labels = {"com.docker.compose.project": PROJECT, "com.docker.compose.service": service}
        filters = [word for name, value in labels.items() for word in ("--filter", f"label={name}={value}")]
        return self.ask("ps", "--all", "--quiet", *filters).split()


async def check(stack: Stack) -> None:
    """Everything a user may rely on, one after the other."""
    base = f"http://127.0.0.1:{stack.ports['PORT']}"
    began = time.monotonic()
    stack.up()
    async with httpx.AsyncClient(base_url=base, timeout=30, trust_env=False) as http:
        await _until(READY_SECONDS, "the port is ready", lambda: _answers(http, "/readyz"))
        print(f"ready {time.monotonic() - began:.1f} s after `up` (containers included)")
        await _until(READY_SECONDS, "both gateways serve", lambda: _both_serve(stack))
        _confined(stack)
        await _answers_come_from_caches(base)
        await _prometheus_sees_all(stack)
        _redis_is_used(stack)
        await _a_killed_gateway_is_not_missed(stack, http)
        await _a_stopped_gateway_ends_its_streams(stack, base)
        await _redis_away(stack, base)
    for gateway in GATEWAYS:
        print(gateway, stack.ask("stats", "--no-stream", "--format", "{{.MemUsage}}", stack.container(gateway)).strip())


def _confined(stack: Stack) -> None:
    for gateway in GATEWAYS:
        if (user := stack.inside(gateway, "id", "-u").stdout.strip()) != "10001":
            raise Failed(f"{gateway} runs as {user}")
        if stack.inside(gateway, "touch", "/etc/prefix-gateway/new").returncode == 0:
            raise Failed(f"{gateway}'s root can be written to")
        if stack.inside(gateway, "healthcheck").returncode != 0:
            raise Failed(f"{gateway}'s health check fails")
        if stack.inside(gateway, "healthcheck", "8080", "/no-such-path").returncode == 0:
            raise Failed("the health check cannot fail")
        capabilities = stack.inside(gateway, "sh", "-c", "grep -E 'CapEff|NoNewPrivs' /proc/1/status").stdout.split()
        if capabilities != ["CapEff:", "0000000000000000", "NoNewPrivs:", "1"]:
            raise Failed(f"{gateway}: {capabilities}")
    print("gateways: uid 10001, read-only root, no capabilities, health check")


async def _answers_come_from_caches(base: str) -> None:
    """The second turn of each conversation is answered from a cache, whichever gateway it comes through."""
    seen: Counter[str] = Counter()
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="unused", max_retries=0) as client:
        for number in range(8):
            messages: list[Any] = [{"role": "user", "content": f"Conversation {number}. {PROMPT}"}]
            for turn in range(3):
                raw = await client.chat.completions.with_raw_response.create(model="chat", messages=messages)
                answer = raw.parse()
                assert answer.usage is not None
                details = answer.usage.prompt_tokens_details
                cached = (details.cached_tokens or 0) if details else 0
                seen["prompt"] += answer.usage.prompt_tokens
                seen["cached"] += cached
                if turn and cached < answer.usage.prompt_tokens * 0.5:
                    raise Failed(
                        f"turn {turn} of conversation {number}: {cached} of {answer.usage.prompt_tokens} cached"
                    )
                text = answer.choices[0].message.content or ""
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]
        stream = await client.chat.completions.create(model="chat", messages=messages, stream=True)
        ends = [chunk.choices[0].finish_reason async for chunk in stream if chunk.choices]
        if not ends[-1]:
            raise Failed("a stream broke off")
    print(f"{seen['cached']} of {seen['prompt']} prompt tokens from caches ({seen['cached'] / seen['prompt']:.0%})")


async def _prometheus_sees_all(stack: Stack) -> None:
    async with httpx.AsyncClient(base_url=_prometheus(stack), timeout=10, trust_env=False) as http:

        async def values(query: str) -> dict[str, float]:
            result = (await http.get("/api/v1/query", params={"query": query})).json()["data"]["result"]
            return {each["metric"].get("instance", ""): float(each["value"][1]) for each in result}

        async def scraped() -> bool:
            up = await values("up")
            return len(up) == 5 and set(up.values()) == {1.0}

        async def counted() -> bool:
            return len([count for count in (await values("gateway_requests_total")).values() if count]) == 2

        await _until(60, "Prometheus scrapes gateways, engines and the proxy", scraped)
        await _until(60, "both gateways served requests", counted)
        await _until(
            60, "each gateway receives messages of the other one through Redis", lambda: _peers_connected(http)
        )
        rules = (await http.get("/api/v1/rules")).json()["data"]["groups"]
        if not rules:
            raise Failed("Prometheus has no rules")
        print(
            "Prometheus:", await values("sum by (instance) (gateway_requests_total)"), f"{len(rules)} groups of rules"
        )


def _redis_is_used(stack: Stack) -> None:
    password = stack.inside("redis", "cat", "/run/secrets/redis/redis.conf").stdout.split('"')[1]
    clients = stack.inside("redis", "redis-cli", "--no-auth-warning", "-a", password, "client", "list").stdout
    hosts = {word.partition("=")[2].rpartition(":")[0] for word in clients.split() if word.startswith("addr=")}
    without = stack.inside("redis", "redis-cli", "ping").stdout
    if len(hosts - {"127.0.0.1", ""}) != 2 or "NOAUTH" not in without:
        raise Failed(f"Redis: clients {hosts}, without a password {without!r}")
    print("Redis: both gateways are connected, no client without the password")


async def _a_killed_gateway_is_not_missed(stack: Stack, http: httpx.AsyncClient) -> None:
    """Answers that are waited for come from the other gateway; it comes back."""
    stop = asyncio.Event()
    statuses: Counter[str] = Counter()

    async def ask(number: int) -> None:
        while not stop.is_set():
            body = {"model": "chat", "messages": [{"role": "user", "content": f"{number} {PROMPT}"}], "max_tokens": 40}
            try:
                answer = await http.post("/v1/chat/completions", json=body)
                whole = answer.status_code == 200 and answer.json()["choices"][0]["finish_reason"]
                statuses["ok" if whole else f"{answer.status_code} {answer.text[:200]}"] += 1
            except httpx.HTTPError as error:
                statuses[repr(error)] += 1

    asking = [asyncio.create_task(ask(number)) for number in range(8)]
    await asyncio.sleep(2)
    before = statuses.total()
    await asyncio.to_thread(stack.ask, "kill", "--signal", "KILL", stack.container("gateway-0"))
    await asyncio.sleep(6)
    if statuses.total() < before + 8:
        raise Failed(f"hardly anything is served without gateway-0: {statuses}")
    await asyncio.to_thread(stack.ask, "start", stack.container("gateway-0"))
    await _until(READY_SECONDS, "the killed gateway serves again", lambda: _both_serve(stack))
    stop.set()
    await asyncio.gather(*asking)
    if set(statuses) != {"ok"}:
        raise Failed(f"a gateway was killed: {statuses}")
    print(f"gateway-0 killed and started again: {statuses.total()} requests, none failed")


async def _a_stopped_gateway_ends_its_streams(stack: Stack, base: str) -> None:
    """Streams that run when a gateway is stopped come to their ends, and its process ends by itself."""
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="unused", max_retries=0) as client:

        async def stream(number: int) -> bool:
            answer = await client.chat.completions.create(
                model="chat",
                messages=[{"role": "user", "content": f"Stream {number}. {PROMPT}"}],
                stream=True,
                max_tokens=300,
                extra_body={"ignore_eos": True},
            )
            chunks = [chunk async for chunk in answer]
            return any(chunk.choices and chunk.choices[0].finish_reason == "length" for chunk in chunks)

        streams = [asyncio.create_task(stream(number)) for number in range(8)]
        await asyncio.sleep(1.5)
        container = stack.container("gateway-1")
        began = time.monotonic()
        await asyncio.to_thread(stack.ask, "stop", "--time", "45", container)
        took = time.monotonic() - began
        ends = await asyncio.gather(*streams, return_exceptions=True)
    if ends != [True] * len(ends):
        raise Failed(f"a gateway was stopped: {ends}")
    (reported,) = json.loads(stack.ask("inspect", container))
    if reported["State"]["ExitCode"] != 0:
        raise Failed(f"the stopped gateway's exit code is {reported['State']['ExitCode']}")
    stack.ask("start", container)
    await _until(READY_SECONDS, "the stopped gateway serves again", lambda: _both_serve(stack))
    print(f"gateway-1 stopped in {took:.1f} s: {len(ends)} streams came to their ends, exit code 0")


async def _redis_away(stack: Stack, base: str) -> None:
    stack.ask("kill", "--signal", "KILL", stack.container("redis"))
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="unused", max_retries=0) as client:
        for number in range(20):
            messages: list[Any] = [{"role": "user", "content": f"{number} {PROMPT}"}]
            await client.chat.completions.create(model="chat", messages=messages, max_tokens=5)
    async with httpx.AsyncClient(base_url=_prometheus(stack), timeout=10, trust_env=False) as http:
        await _until(60, "gateways without Redis receive nothing", lambda: _peers_connected(http, peers=0))
        stack.ask("start", stack.container("redis"))
        await _until(60, "each gateway receives messages of the other one again", lambda: _peers_connected(http))
    print("Redis killed and started again: 20 requests served meanwhile")


async def _peers_connected(prometheus: httpx.AsyncClient, peers: int = 1) -> bool:
    result = (await prometheus.get("/api/v1/query", params={"query": "gateway_peers"})).json()["data"]["result"]
    return [int(each["value"][1]) for each in result] == [peers] * len(GATEWAYS)


def _prometheus(stack: Stack) -> str:
    return f"http://127.0.0.1:{stack.ports['PROMETHEUS_PORT']}"


async def _both_serve(stack: Stack) -> bool:
    asked = [asyncio.to_thread(stack.inside, gateway, "healthcheck", "8080", "/readyz") for gateway in GATEWAYS]
    return all(answer.returncode == 0 for answer in await asyncio.gather(*asked))


async def _answers(http: httpx.AsyncClient, path: str) -> bool:
    try:
        return (await http.get(path)).status_code == 200
    except httpx.HTTPError:
        return False


async def _until(seconds: float, what: str, holds: Callable[[], Any]) -> None:
    end = time.monotonic() + seconds
    while not await holds():
        if time.monotonic() > end:
            raise Failed(f"not within {seconds} s: {what}")
        await asyncio.sleep(0.5)


def _run(words: list[str], env: dict[str, str], *, check: bool = True, quiet: bool = False) -> str:
    done = subprocess.run(
        words,
        check=False,
        env=env,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
    )
    if check and done.returncode != 0:
        raise Failed(f"{shlex.join(words)}: exit code {done.returncode}\n{done.stdout or ''}")
    return done.stdout or ""


def main() -> int:
    try:
        stack = Stack()
        began = time.monotonic()
        stack.build()
        size = stack.image_bytes()
        print(
            f"built in {time.monotonic() - began:.0f} s: {size['all'] / 1e6:.0f} MB,"
            f" of which {size['added'] / 1e6:.0f} MB over the base image"
        )
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 1
    try:
        stack.down()
        asyncio.run(check(stack))
    except Exception as failure:
        print(f"{stack.logs()}\nFAILED: {failure!r}", file=sys.stderr)
        return 1
    finally:
        if not os.environ.get("KEEP"):
            stack.down()
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
