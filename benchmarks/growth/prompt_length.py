"""CPU time per request by the length of its prompt: one that was answered before, and one that was never seen."""

import random
from argparse import ArgumentParser, Namespace

from benchmarks.growth.plot import Axis, Plot
from benchmarks.growth.prompts import body, chat, count_tokens
from benchmarks.growth.result import Result
from benchmarks.growth.stage import Stage

_WARM_CONVERSATIONS = 4
_UNSEEN_TOKENS, _UNSEEN_REQUESTS = 2_000_000, 400
"""Most tokens and requests that are never seen before, for each length."""


def add_arguments(parser: ArgumentParser) -> None:
    lengths = [1_000, 4_000, 16_000, 64_000, 128_000]
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=lengths, help="lengths of prompts")


def measure(args: Namespace) -> Result:
    rows = []
    with Stage(blocks=2_000_000) as stage:
        for tokens in args.prompt_tokens:
            rng = random.Random(tokens)
            conversations = [chat(rng, tokens) for _ in range(_WARM_CONVERSATIONS)]
            warm = stage.write_bodies("warm", [body(messages, warm=True) for messages in conversations])
            for _ in range(2):  # both replicas may get it
                stage.cost(warm, args.seconds, connections=4, once=True)
            known = stage.cost(warm, args.seconds, connections=4)
            count = max(min(_UNSEEN_TOKENS // tokens, _UNSEEN_REQUESTS), 4)
            bodies = [body(chat(rng, tokens), warm=False) for _ in range(count)]
            unseen = stage.cost(stage.write_bodies("unseen", bodies), 60, connections=4, once=True)
            length = count_tokens(conversations[0])
            rows.append(
                (
                    *(length, known.gateway_ms, known.explain_ms, unseen.gateway_ms, unseen.explain_ms),
                    *(1e3 * known.all_ms / length, 1e3 * unseen.all_ms / length),
                )
            )
    return Result(
        (
            *(
                "prompt tokens",
                "warm, gateway ms",
                "warm, explaining ms",
                "unseen, gateway ms",
                "unseen, explaining ms",
            ),
            *("warm, us per token", "unseen, us per token"),
        ),
        rows,
        Plot(
            "CPU time per request by prompt length",
            Axis("prompt tokens"),
            Axis("ms of CPU, all processes"),
            {
                "warm": [(row[0], row[1] + row[2]) for row in rows],
                "unseen": [(row[0], row[3] + row[4]) for row in rows],
            },
        ),
        [f"At most {_UNSEEN_REQUESTS} unseen requests and {_UNSEEN_TOKENS // 10**6} million unseen tokens per length."],
    )
