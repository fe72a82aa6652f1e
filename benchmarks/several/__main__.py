"""Eight gateways against one: the same recorded traffic, each request at a gateway by chance.

    python -m benchmarks.several [--gateways 8] [--replicas 4] [--conversations 200] [--events on|off|both]

Conversations of two isolated tenants are written down once: chats behind a shared system prompt, questions about
documents, agents with tools, prompts with the time in their first line, histories that are trimmed. Then the very same
bytes are sent at the same times to one gateway, to N with a Redis, and to N without, each time with fresh gateways and
fresh simulated engines, whose caches are too small for everything; with the engines' KV events and without them.
Requests of a conversation go to any of the gateways, as behind any balancer. The engines are slow, so
that they and not this machine are what answers wait for; `sent late` shows whether that is so. With Redis the tenants'
prefix spaces are those of the one gateway's run: which replica gets a cold prefix hangs on them, and would else be
another luck.

Shown are the share of prompt tokens that the engines had cached (as they report it), times to the first token, and
where all prompt tokens went by what each gateway says of its own requests, added up. N gateways with Redis count as
good as one if

* their hit rate is at least 0.99 times that of one gateway, and
* each rung of the ladder of explanations, added up over all requests and gateways, differs from that of one gateway by
  no more than 3 % of all prompt tokens, which are the same in both (a share of the rung itself would make much of
  rungs that hardly add anything), and all requests are explained.

Exit code 0 if so, else 1, also if a request fails or gets another answer than was recorded; 2 if no Redis is installed.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.several.recording import TENANTS, Recording, record
from benchmarks.several.replay import Replayed, replay
from benchmarks.several.report import Found, problems, show
from benchmarks.several.stage import Engines, Stage
from gateway.core.api_keys import new_key


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateways", type=int, default=8)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--rate", type=float, default=15.0, help="requests a second, about")
    parser.add_argument("--events", choices=("on", "off", "both"), default="both")
    parser.add_argument("--blocks", type=int, default=1536, help="of each engine's cache, 16 tokens each")
    parser.add_argument("--prefill-rate", type=float, default=4000.0, help="tokens a second that an engine computes")
    parser.add_argument("--decode-ms", type=float, default=10.0, help="for a token of an answer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--beside",
        choices=("redis", "alone"),
        nargs="*",
        default=("redis", "alone"),
        help="what one gateway is compared with",
    )
    parser.add_argument("--keep", type=Path, help="folder for logs, and for every request with its explanation")
    args = parser.parse_args()
    redis_server = shutil.which("redis-server")
    if redis_server is None:
        print("redis-server is not installed (Debian: apt install redis-server)", file=sys.stderr)
        return 2
    return asyncio.run(_run(args, redis_server))


async def _run(args: argparse.Namespace, redis_server: str) -> int:
    recording = record(args.conversations, args.rate, args.seed)
    print(f"{recording.requests} requests in {len(recording.conversations)} conversations, {recording.seconds:.0f} s")
    reported = []
    for events in {"on": [True], "off": [False], "both": [True, False]}[args.events]:
        engines = Engines(args.replicas, args.blocks, args.prefill_rate, args.decode_ms, events)
        found = {}
        with tempfile.TemporaryDirectory() as folder:
            suffix = f"events-{'on' if events else 'off'}"
            kept = args.keep or Path(folder)
            arranged = Arranged(recording, engines, kept, suffix, in_full=args.keep is not None)
            found["one"] = await arranged.replay("one gateway", 1)
            if "redis" in args.beside:
                found["redis"] = await arranged.replay(f"{args.gateways} with Redis", args.gateways, redis_server)
            if "alone" in args.beside:
                found["alone"] = await arranged.replay(f"{args.gateways} without", args.gateways)
        title = "with KV events" if events else "without KV events"
        show(title, list(found.values()))
        reported += [f"{title}: {each}" for each in problems(list(found.values()), found.get("redis"))]
    for problem in reported:
        print(f"NOT RIGHT  {problem}")
    if not reported:
        print("\nall as it should be")
    return 1 if reported else 0


class Arranged:
    """Replays a recording with one arrangement of gateways after the other.

    Args:
        recording: What is sent.
        engines: What the engines are like.
        folder: Where all is kept.
        suffix: Of the names there.
        in_full: Whether every request is written there with its explanation.
    """

    def __init__(self, recording: Recording, engines: Engines, folder: Path, suffix: str, *, in_full: bool) -> None:
        self._in_full = in_full
        self._recording = recording
        self._engines = engines
        self._folder = folder
        self._suffix = suffix
        self._keys = {tenant: new_key() for tenant in TENANTS}
        self._saved_spaces: bytes | None = None

    async def replay(self, name: str, gateways: int, redis_server: str | None = None) -> Found:
        """Replay it once.

        Args:
            name: For people.
            gateways: How many.
            redis_server: The Redis that they share; None for none.
        """
        began = time.monotonic()
        folder = self._folder / f"{name.replace(' ', '-')}-{self._suffix}"
        # Where a cold prompt goes follows from its space's epoch, too: with epochs of their own, one arrangement would
        # have two large prefixes on one replica by luck and the other would not. Without Redis no epoch is common.
        saved_spaces = self._saved_spaces if redis_server else None
        stage = Stage(folder, self._engines, gateways, redis_server, self._keys, saved_spaces)
        async with stage:
            replayed = await replay(self._recording, [gateway.url for gateway in stage.gateways], self._keys)
            totals = await stage.totals(len(replayed.answered))
            if self._in_full:
                await _write_down(stage, replayed, folder / "requests.jsonl")
        self._saved_spaces = self._saved_spaces or stage.saved_spaces()
        took = time.monotonic() - began
        print(f"{name}: hit rate {replayed.hit_rate:.4f}, {took:.0f} s", file=sys.stderr, flush=True)
        return Found(name, replayed, totals)


async def _write_down(stage: Stage, replayed: Replayed, file: Path) -> None:
    with file.open("w", encoding="utf-8") as lines:
        for each in sorted(replayed.answered, key=lambda answered: answered.sent_at):
            explained = await stage.asked(stage.gateways[each.gateway], f"/admin/api/requests/{each.request_id}")
            lines.write(json.dumps(each.line() | {"explained": explained}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
