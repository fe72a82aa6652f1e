"""One vLLM engine in this very process, so that its prefix cache can be read: what it was asked, said and held.

Needs the engine's own virtual environment. What the engine publishes comes in over its sockets, as any subscriber gets
it; what it holds is read from the scheduler's block pool, never from the events. The two meet only in the test that
compares them.
"""

import base64
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import zmq
from vllm import SamplingParams, __version__, envs
from vllm.config import KVEventsConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id, maybe_convert_block_hash
from vllm.v1.engine.llm_engine import LLMEngine

BLOCK_SIZE = 32
TOPIC = "kv-events"
_WAIT_SECONDS = 10.0
_FLAGS: dict[str, Any] = {
    "block_size": BLOCK_SIZE,
    "enable_prefix_caching": True,
    "dtype": "float32",
    "enforce_eager": True,
    "num_gpu_blocks_override": 48,
    "max_num_seqs": 4,
    "max_model_len": 1024,
    "max_num_batched_tokens": 160,
}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _base64(frames: list[bytes]) -> list[str]:
    return [base64.b64encode(frame).decode() for frame in frames]


class Subscriber:
    """Collects every message of the engine's publisher as it comes in, in a thread of its own."""

    def __init__(self, address: str) -> None:
        self.messages: list[list[bytes]] = []
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, TOPIC.encode())
        self._socket.connect(address)
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        while True:
            self.messages.append(self._socket.recv_multipart())

    def wait_for(self, count: int) -> None:
        """Wait until that many messages are here; raises RuntimeError if they do not come or too many did."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while len(self.messages) < count and time.monotonic() < deadline:
            time.sleep(0.001)
        if len(self.messages) != count:
            raise RuntimeError(f"{len(self.messages)} messages received, {count} published")


def replay(address: str, start: int) -> list[list[bytes]]:
    """What the engine's replay socket answers to a request for everything from a sequence number on."""
    answer = []
    with zmq.Context.instance().socket(zmq.DEALER) as asking:
        asking.connect(address)
        asking.send_multipart([b"", start.to_bytes(8, "big")])
        while asking.poll(_WAIT_SECONDS * 1000):
            answer.append(asking.recv_multipart())
            if int.from_bytes(answer[-1][2], "big", signed=True) == -1:
                return answer
    raise RuntimeError("the replay did not end")


class Recorder:
    """Drives one engine and keeps the record."""

    def __init__(self, model: str, **flags: Any) -> None:
        ports = [_free_port(), _free_port()]
        self.flags = _FLAGS | flags
        events = KVEventsConfig(
            enable_kv_cache_events=True,
            publisher="zmq",
            endpoint=f"tcp://*:{ports[0]}",
            replay_endpoint=f"tcp://*:{ports[1]}",
            topic=TOPIC,
        )
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(model=model, kv_events_config=events, disable_log_stats=True, **self.flags)
        )
        self._scheduler = self._engine.engine_core.engine_core.scheduler
        self._published = 0
        self._count_batches()
        self._subscriber = Subscriber(f"tcp://127.0.0.1:{ports[0]}")
        self._replay_address = f"tcp://127.0.0.1:{ports[1]}"
        self._tokens: dict[str, list[int]] = {}
        self._record: dict[str, dict[str, Any]] = {}
        self._checkpoints: list[dict[str, Any]] = []
        time.sleep(1.0)  # a subscription that is not there yet misses the first batch

    def _count_batches(self) -> None:
        publisher = self._scheduler.kv_event_publisher
        publish = publisher.publish

        def counted(batch: Any) -> None:
            self._published += 1
            publish(batch)

        publisher.publish = counted

    def ask(self, *prompts: list[int], about: str = "", **options: Any) -> list[list[int]]:
        """Requests sent together; returns the generated tokens of each when all are answered.

        Args:
            prompts: Token ids, one list per request.
            about: What they are there for.
            options: As for ``send``.
        """
        identities = [self.send(prompt, about=about, together=len(prompts) > 1, **options) for prompt in prompts]
        self.run()
        return [self._tokens[identity] for identity in identities]

    def send(
        self,
        prompt: list[int],
        about: str,
        together: bool = False,
        generate: int = 1,
        salt: str = "",
        adapter: LoRARequest | None = None,
        bypass: bool = False,
        report: bool = False,
    ) -> str:
        """Hand in one request and do not wait for it.

        Args:
            prompt: Token ids.
            about: What it is there for.
            together: Others are in flight with it.
            generate: How many tokens to generate.
            salt: Its ``cache_salt``.
            adapter: LoRA adapter.
            bypass: Ask for prompt log probabilities, so that the engine does not look into its cache.
            report: Have the engine repeat the blocks that are reused in its events.
        """
        identity = str(len(self._record))
        sampling = SamplingParams(
            max_tokens=generate,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            prompt_logprobs=1 if bypass else None,
            extra_args={"kv_cache_report_mode": "full"} if report else None,
        )
        content: dict[str, Any] = {"prompt_token_ids": prompt}
        if salt:
            content["cache_salt"] = salt
        self._record[identity] = {
            "about": about,
            "after_messages": self._published,
            "events_wait": self._events_wait(),
            "together": together,
            "bypass": bypass,
            "salt": salt,
            "adapter": adapter.lora_name if adapter else "",
            "generate": generate,
            "token_ids": prompt,
            "cached_tokens": None,
        }
        self._engine.add_request(identity, content, sampling, lora_request=adapter)
        return identity

    def run(self, steps: int | None = None) -> None:
        """Let the engine work: so many steps, or until nothing is left to do."""
        while self._engine.has_unfinished_requests() and steps != 0:
            steps = None if steps is None else steps - 1
            for output in self._engine.step():
                if output.finished:
                    self._record[output.request_id]["cached_tokens"] = output.num_cached_tokens
                    self._tokens[output.request_id] = list(output.outputs[0].token_ids)
        self._subscriber.wait_for(self._published)

    def abort(self, identity: str) -> None:
        """The client has left."""
        self._engine.abort_request([identity])

    def reset(self) -> None:
        """Empty the prefix cache; raises RuntimeError if the engine does not."""
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("the engine did not reset its cache")

    def checkpoint(self, about: str) -> None:
        """Write down what the engine holds, at a moment when everything it did has been published."""
        if self._events_wait():
            raise RuntimeError(f"{about}: events wait for the next step")
        holds = sorted(entry for pool in self._pools() for entry in _holds(pool))
        self._checkpoints.append({"about": about, "after_messages": self._published, "holds": holds})

    def _events_wait(self) -> bool:
        """Whether something has happened to the cache that the engine will publish with its next step."""
        return any(pool.kv_event_queue for pool in self._pools())

    def _pools(self) -> list[Any]:
        managers = self._scheduler.kv_cache_manager.coordinator.single_type_managers
        return list({id(manager.block_pool): manager.block_pool for manager in managers}.values())

    def document(self) -> dict[str, Any]:
        """Everything, as JSON."""
        self._subscriber.wait_for(self._published)
        groups = self._scheduler.kv_cache_config.kv_cache_groups
        return {
            "engine": f"vLLM {__version__}",
            "flags": self.flags,
            "hashes": "int" if envs.VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES else "bytes",
            "groups": [
                {"kind": type(group.kv_cache_spec).__name__, "block_size": group.kv_cache_spec.block_size}
                for group in groups
            ],
            "messages": [_base64(frames) for frames in self._subscriber.messages],
            "replay": {
                "start": self._published - 2,
                "answer": [_base64(frames) for frames in replay(self._replay_address, self._published - 2)],
            },
            "requests": list(self._record.values()),
            "checkpoints": self._checkpoints,
        }


def _holds(pool: Any) -> Iterator[tuple[int, int | str, int]]:
    """Group, hash as the events give it (bytes as hex), and number of copies of every block that can be reused."""
    for key, blocks in pool.cached_block_hash_to_block._cache.items():
        name = maybe_convert_block_hash(get_block_hash(key))
        copies = len(blocks) if isinstance(blocks, dict) else 1
        yield get_group_id(key), name.hex() if isinstance(name, bytes) else name, copies
