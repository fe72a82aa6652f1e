"""What an engine is asked while its events are recorded. ``capture_scenarios.py MODEL SCENARIO TARGET.json``

Needs the engine's own virtual environment.
"""

import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

from capture_models import make_adapter, make_hybrid_model
from capture_recorder import BLOCK_SIZE, Recorder


def text(number: int, tokens: int) -> list[int]:
    """Token ids without meaning; the same number gives the same, a longer text begins like a shorter one."""
    return random.Random(number).choices(range(100, 48_000), k=tokens)


def everything(model: Path, folder: Path) -> Recorder:
    """All that an engine with one group of full attention does to its cache."""
    recorder = Recorder(str(model), enable_lora=True, max_lora_rank=8)
    adapter = make_adapter(folder, model)
    rules = text(1, 3 * BLOCK_SIZE)
    recorder.ask(rules + text(2, 20), about="never seen")
    recorder.ask(rules + text(3, 25), about="shared prefix")
    recorder.ask(text(4, BLOCK_SIZE - 2), about="shorter than a block")
    for _ in range(3):
        recorder.ask(text(5, 4 * BLOCK_SIZE), about="exactly four blocks, so the last is computed every time")
    for salt in ("tenant-a", "tenant-b", "tenant-a", "", "tenant-b"):
        recorder.ask(rules + text(6, 40), about="salt", salt=salt)
    recorder.checkpoint("copies and salts")

    spoken = text(7, 2 * BLOCK_SIZE + 10)
    (reply,) = recorder.ask(spoken, about="long answer", generate=90)
    recorder.ask(spoken + reply + text(8, 12), about="goes on behind the answer")
    recorder.ask(text(9, 50), text(9, 50), about="the same twice at once, with long answers", generate=80)
    recorder.ask(rules + text(3, 25), about="prompt log probabilities", bypass=True)
    for used in (adapter, None, adapter):
        recorder.ask(rules + text(10, 40), about="adapter", adapter=used)
    recorder.ask(rules + text(10, 40), about="adapter and salt", adapter=adapter, salt="tenant-a")
    recorder.checkpoint("generated blocks, copies of all blocks, an adapter")

    for number in range(8):
        recorder.ask(text(20 + number, 6 * BLOCK_SIZE + 5), about="more than fits")
    recorder.checkpoint("evictions")
    for number in reversed(range(8)):
        recorder.ask(text(20 + number, 6 * BLOCK_SIZE + 9), about="again, the latest first")
    recorder.checkpoint("hits between evictions")

    recorder.reset()
    recorder.ask(text(27, 6 * BLOCK_SIZE + 5), about="after a reset")
    recorder.checkpoint("reset")
    recorder.ask(*(text(30 + n, 10 * BLOCK_SIZE) for n in range(3)), about="do not fit together", generate=210)
    recorder.checkpoint("preemption")
    left = recorder.send(text(40, 15 * BLOCK_SIZE), about="given up in the middle of its prefill")
    recorder.run(steps=2)
    recorder.abort(left)
    recorder.run()
    recorder.ask(text(40, 15 * BLOCK_SIZE), about="finds what was computed until then")
    recorder.checkpoint("given up")

    choice = random.Random(50)
    for _ in range(24):
        family = text(50 + choice.randrange(4), 8 * BLOCK_SIZE)
        prompts = [
            family[: choice.randrange(1, 9) * BLOCK_SIZE]
            + text(choice.randrange(60, 90), choice.choice((0, 7, 32, 50)))
            for _ in range(choice.choice((1, 1, 1, 2, 3)))
        ]
        recorder.ask(
            *prompts, about="mixed", generate=choice.choice((1, 1, 35)), salt=choice.choice(("", "", "tenant-a"))
        )
    recorder.checkpoint("mixed")
    recorder.reset()
    recorder.ask(text(91, 10), about="brings out the reset, and nothing else")
    recorder.checkpoint("empty")
    return recorder


def reports(model: Path, folder: Path) -> Recorder:
    """Requests that have the engine repeat what they reuse: events of blocks stored that are no new copies."""
    recorder = Recorder(str(model))
    rules = text(1, 4 * BLOCK_SIZE)
    recorder.ask(rules + text(2, 20), about="never seen")
    recorder.ask(rules + text(3, 20), about="reused and reported", report=True)
    recorder.ask(rules + text(4, 20), about="reused and reported", report=True)
    recorder.checkpoint("one copy, reported three times")
    for number in range(9):
        recorder.ask(text(20 + number, 6 * BLOCK_SIZE + 5), about="more than fits")
    recorder.ask(rules + text(2, 20), about="evicted")
    recorder.checkpoint("evicted and computed again")
    return recorder


def hybrid(model: Path, folder: Path) -> Recorder:
    """Two groups: one keeps all blocks of a prompt, the other those inside of its sliding window."""
    del model
    recorder = Recorder(str(make_hybrid_model(folder)), load_format="dummy", skip_tokenizer_init=True)
    rules = text(1, 6 * BLOCK_SIZE)
    recorder.ask(rules + text(2, 20), about="never seen")
    recorder.ask(rules + text(3, 90), about="shared prefix")
    recorder.ask(rules + text(3, 90) + text(4, 40), about="goes on", generate=70)
    recorder.ask(rules[: 3 * BLOCK_SIZE] + text(5, 40), about="ends in the middle of what is held")
    recorder.ask(text(6, 4 * BLOCK_SIZE), about="exactly four blocks")
    recorder.ask(text(6, 4 * BLOCK_SIZE), about="exactly four blocks")
    recorder.checkpoint("two groups")
    for number in range(6):
        recorder.ask(text(20 + number, 7 * BLOCK_SIZE + 5), about="more than fits")
    for number in reversed(range(6)):
        recorder.ask(text(20 + number, 7 * BLOCK_SIZE + 9), about="again, the latest first")
    recorder.checkpoint("evictions")
    choice = random.Random(50)
    for _ in range(16):
        family = text(50 + choice.randrange(4), 8 * BLOCK_SIZE)
        shared = family[: choice.randrange(1, 9) * BLOCK_SIZE]
        own = text(choice.randrange(60, 90), choice.choice((0, 7, 32, 50)))
        recorder.ask(shared + own, about="mixed", generate=choice.choice((1, 1, 35)))
    recorder.checkpoint("mixed")
    return recorder


SCENARIOS: dict[str, Callable[[Path, Path], Recorder]] = {
    "everything": everything,
    "reports": reports,
    "hybrid": hybrid,
}


def main(model: str, scenario: str, target: str) -> None:
    written = Path(target)
    recorder = SCENARIOS[scenario](Path(model), written.with_suffix(".models"))
    written.write_text(json.dumps(recorder.document()))
    os._exit(0)  # the engine's threads need not be asked


if __name__ == "__main__":
    main(*sys.argv[1:4])
