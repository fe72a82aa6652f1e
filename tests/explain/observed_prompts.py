"""A shadow with a real tokenizer and simple rules, and requests for it."""

import re
import time
from typing import Any, ClassVar

import msgspec
import orjson
from answered_requests import answered

from gateway.canon.rule import Detected, Edit
from gateway.canon.rulebook import Rulebook
from gateway.canon.texts import texts
from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import Canonicalized, RuleMode, RuleName
from gateway.core.explanation import Explanation, RequestRecord, SpaceKey
from gateway.core.request import Endpoint
from gateway.explain.seen import PromptHashes
from gateway.explain.whatif.whatif import WhatIf
from gateway.explain.worker.explain_messages import CanonOptions, ModelOptions
from gateway.tokenize.block_hashes import ChainHasher
from gateway.tokenize.load_tokenizer import load_local

ENCODER = load_local("builtin:demo")
OPTIONS = CanonOptions(CanonSettings().model_dump_json().encode(), {"demo": ModelOptions("builtin:demo")})
WHERE = SpaceKey("demo", ENCODER.tokenizer_id, "v1")
LONG = " ".join(f"Rule {n}: be kind about topic {n * 7}." for n in range(60))


class TakeOut:
    """A rule that takes out what a pattern finds."""

    name: ClassVar[RuleName]

    def __init__(self, name: RuleName, regex: str) -> None:
        self.name = name  # type: ignore[misc]
        self._regex = re.compile(regex)

    def detect(self, fields, given):
        return Detected(
            [
                Edit(self.name, "taken_out", text.path, found[0], "", found.start(), "Something is taken out.")
                for text in texts(fields)
                for found in self._regex.finditer(text.text)
            ]
        )


class Stamps:
    """A rule with a memory: puts a number behind the last message, and behind earlier ones what it put there."""

    name = RuleName.DYNAMIC_SUFFIX
    count = 0

    def detect(self, fields, given):
        edits, remember, lost = [], {}, False
        users = [text for text in texts(fields) if text.role == "user"]
        for text in users:
            key = f"{given.owner}/{text.text}".encode()
            block = given.recall(key)
            if text is users[-1]:
                Stamps.count += 1
                block = f" (stamp {Stamps.count})"
                remember[key] = block
            if block is None:
                lost = True
            else:
                edits.append(Edit(self.name, "stamped", text.path, "", block, len(text.text)))
        return Detected(edits, remember, lost)


BUILT = [TakeOut(RuleName.UNICODE, "%[0-9]+"), TakeOut(RuleName.WHITESPACE, "#[0-9]+"), Stamps()]


def modes(**given: str) -> tuple[RuleMode, ...]:
    """Modes by the rules' names with underscores; off where nothing is said."""
    named = {name.replace("_", "-"): RuleMode(mode) for name, mode in given.items()}
    return tuple(named.get(rule, RuleMode.OFF) for rule in RuleName)


def body(*texts_: str) -> bytes:
    """A chat: system, user, assistant, user and so on."""
    roles = ["system", *(["user", "assistant"] * len(texts_))]
    return orjson.dumps(
        {"messages": [{"role": role, "content": text} for role, text in zip(roles, texts_, strict=False)]}
    )


def ids(sent: bytes) -> bytes:
    return ENCODER.encode(Endpoint.CHAT, orjson.loads(sent))[0]


def tokens(sent: bytes) -> int:
    return len(ids(sent)) // 4


def common(one: bytes, other: bytes) -> int:
    """Tokens of whole blocks that the second prompt can take from the first."""
    first, second = (memoryview(ids(each)).cast("I") for each in (one, other))
    equal = next((at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), len(first))
    return min(equal, len(second) - 1) // 16 * 16


def request(sent: bytes, asked: bytes = b"", lost: bool = False, owner: str = "acme", **fields: Any) -> RequestRecord:
    """An answered request; ``observe`` and ``apply`` name the rules of a mode."""
    given = dict.fromkeys(fields.pop("observe", ()), "observe") | dict.fromkeys(fields.pop("apply", ()), "apply")
    base = answered(
        body=sent,
        parts=(ids(sent),),
        prompt_tokens=tokens(sent),
        where=WHERE,
        canonical=Canonicalized(modes(**given), asked, lost, owner),
    )
    return msgspec.structs.replace(base, **fields)


class Observer:
    """A shadow whose tokenizer is loaded."""

    def __init__(self, load=lambda options: ENCODER, wait: bool = True) -> None:
        self.shadow = WhatIf(
            OPTIONS,
            PromptHashes(ChainHasher()),
            seen_blocks=100_000,
            ttl_seconds=3600,
            load=load,
            build=lambda _: Rulebook(BUILT),
        )
        self.at = 1000.0
        if wait:
            odd = request(body("#1 Hello.", "x"), observe=["whitespace"], life="before")
            until = time.monotonic() + 20
            while not self.observed(odd).observed:
                assert time.monotonic() < until
                time.sleep(0.005)

    def observed(self, finished: RequestRecord, seconds: float = 1.0) -> Explanation:
        self.at += seconds
        finished = msgspec.structs.replace(finished, at=self.at)
        return self.shadow.observed(finished, Explanation(finished.prompt_tokens, 0, True, (), ()))

    def reported(self, finished: RequestRecord, seconds: float = 1.0) -> dict[str, tuple[int, int, int]]:
        """Edits, saved and lost tokens by rule."""
        explanation = self.observed(finished, seconds)
        assert explanation.observed
        return {each.rule: (each.edits, each.saved_tokens, each.lost_tokens) for each in explanation.canonical}
