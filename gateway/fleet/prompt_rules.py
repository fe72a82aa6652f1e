"""Finds out by which rules the replicas of a model make prompts of chat requests.

Metrics tell the kind of engine and ``/server_info`` the release of an SGLang. Flags and templates show only in tokens:
in those that an SGLang's ``/tokenize`` makes of a probe, and in how many prompt tokens an answer reports.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

from gateway.core.engine_facts import EngineKind
from gateway.core.errors import Overloaded, TokenizerUnavailable
from gateway.core.ids import ModelId, ReplicaId
from gateway.core.request import ChatRequest, Endpoint
from gateway.engines import PROBE, ChatRules, chat_rules, other_rules
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica import Replica
from gateway.tokenize.encoder import Encoder

_MOST_TRIES = 8
"""Prompts of a replica, counted otherwise than here, that are encoded by all other rules."""

_MOST_BYTES = 512 * 1024
"""Of the body of such a request: rendered eight times, it takes a thread about a second."""

_TEMPLATE_FIX = (
    "compare models[].tokenizer, chat_template and chat_template_kwargs with the engine's --tokenizer, --chat-template "
    "and default template arguments"
)

_log = structlog.get_logger("gateway.fleet.prompts")


@dataclass(slots=True)
class _Found:
    """What is known of a replica.

    Attributes:
        identity: Kind, release and tokens of the probe, on which the rest is based.
        rules: Its rules.
        certain: Whether tokens have shown them.
        tries: Prompts encoded by all other rules.
    """

    identity: tuple[object, ...]
    rules: ChatRules
    certain: bool = False
    tries: int = 0


class PromptRules:
    """The rules of one model's replicas. Its encoder follows those of most of them.

    Args:
        fleet: The replicas.
        model: Id of the model.
        encoder: Its encoder.
        excludes_tools: Whether vLLM leaves out tools that must not be called; None: to be found out.
    """

    def __init__(self, fleet: Fleet, model: ModelId, encoder: Encoder, *, excludes_tools: bool | None) -> None:
        self._fleet = fleet
        self._model = model
        self._encoder = encoder
        self._excludes_tools = excludes_tools
        self._found: dict[ReplicaId, _Found] = {}

    def adapt(self) -> None:
        """Take up what the replicas tell of themselves."""
        for replica in self._fleet.of(self._model):
            version, probe = (replica.server.version, replica.server.probe) if replica.server else (None, None)
            identity = (replica.facts.kind, version, probe)
            if (known := self._found.get(replica.id)) is None or known.identity != identity:
                replica.prompt_finding = ""
                self._found[replica.id] = _Found(identity, self._rules(replica.facts.kind, version or ""))
                self._examine(replica, probe)
        self._choose()

    async def counted(self, replica: Replica, request: ChatRequest, own: int, counted: int) -> None:
        """An engine has counted a prompt: compare, and find out why it differs.

        Args:
            replica: Its replica.
            request: The request; its prompt is text only.
            own: Prompt tokens here.
            counted: Prompt tokens that the answer reports.
        """
        found = self._found.get(replica.id)
        if own == counted or found is None or found.tries == _MOST_TRIES or replica.prompt_finding:
            return
        if not 0 < len(request.body) <= _MOST_BYTES:
            return
        found.tries += 1
        seen = f"it counts {counted} prompt tokens of a request that has {own} here"
        others = list(other_rules(self._encoder.rules)) if request.endpoint is Endpoint.CHAT else []
        try:
            counts = await self._encoder.count(request, orjson.loads(request.body), others)
        except Overloaded:
            return
        equal = [each for each, tokens in zip(others, counts, strict=True) if tokens == counted]
        kind, given = replica.facts.kind, self._excludes_tools is not None
        learned = [each for each in equal if kind in (None, each.engine) and each.content_format is None]
        if request.endpoint is Endpoint.CHAT and learned and not (given and learned[0].engine is EngineKind.VLLM):
            found.rules, found.certain = learned[0], True
            _log.info("prompt_rules_found", replica=replica.id, rules=found.rules.label, because=seen)
            self._choose()
            if self._encoder.rules != found.rules:
                self._differs(replica, seen, f"it follows {found.rules.label}", "serve it as a model of its own")
        elif equal and equal[0].content_format is not None:
            taken = equal[0].content_format
            self._differs(replica, seen, f"it takes content as `{taken}`", f"set models[].content_format: {taken}")
        elif equal:
            fix = "correct its URL, or exclude_tools_when_tool_choice_none, by the engine's flags"
            self._differs(replica, seen, f"it counts as {equal[0].label}", fix)
        else:
            self._differs(replica, seen, "its tokenizer, chat template or template arguments differ", _TEMPLATE_FIX)

    def _rules(self, kind: EngineKind | None, version: str) -> ChatRules:
        return chat_rules(kind, version, excludes_tools=bool(self._excludes_tools))

    def _examine(self, replica: Replica, probe: bytes | None) -> None:
        """Compare the tokens that an SGLang has made of the probe."""
        found, local = self._found[replica.id], self._encoder.local
        if replica.server is None or replica.facts.kind is not EngineKind.SGLANG:
            return
        if probe is None:
            if local is None:
                said = "its /tokenize takes no chat requests, so chats are routed by their text"
                self._differs(replica, said, "the gateway has no tokenizer", "set models[].tokenizer to its files")
            self._encoder.takes_chats(False)
            return
        self._encoder.takes_chats(True)
        if local is None:
            return
        for rules in (found.rules, *other_rules(found.rules)):
            if _tokens(local.encode, PROBE, rules) == probe:
                found.rules, found.certain = rules, True
                return
        said = "it makes other tokens of a test prompt"
        self._differs(replica, said, "its tokenizer or chat template differ", _TEMPLATE_FIX)

    def _choose(self) -> None:
        """Encode by the rules of most replicas: of those whose tokens have shown them, or of all."""
        found = [self._found[replica.id] for replica in self._fleet.of(self._model) if replica.id in self._found]
        votes = Counter(each.rules for each in found if each.certain) or Counter(each.rules for each in found)
        present = self._encoder.rules
        if votes and votes[present] < max(votes.values()):
            self._encoder.use(votes.most_common(1)[0][0])
            _log.info("prompt_rules_in_use", model=self._model, rules=self._encoder.rules.label)

    def _differs(self, replica: Replica, seen: str, cause: str, fix: str) -> None:
        replica.prompt_finding = f"{seen[:1].upper()}{seen[1:]}: {cause}. To do: {fix}."
        _log.warning("prompt_tokens_differ", replica=replica.id, model=self._model, seen=seen, cause=cause, fix=fix)


def _tokens(encode: Any, fields: Mapping[str, Any], rules: ChatRules) -> bytes | None:
    try:
        return b"".join(encode(Endpoint.CHAT, fields, rules))
    except TokenizerUnavailable:
        return None
