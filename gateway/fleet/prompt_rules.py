"""Finds out by which rules the replicas of a model make prompts of chat requests.

Metrics tell the kind of engine and ``/server_info`` the release of an SGLang. Flags and templates show only in tokens:
in those that an SGLang's ``/tokenize`` makes of a probe, and in how many prompt tokens an answer reports.
"""

import contextlib
from collections import Counter
from dataclasses import dataclass

import orjson
import structlog

from gateway.core.engine_facts import EngineKind
from gateway.core.errors import Overloaded, TokenizerUnavailable
from gateway.core.ids import ModelId, ReplicaId
from gateway.core.request import ChatRequest, Endpoint
from gateway.engines import PROBE, ChatRules, chat_rules, other_rules
from gateway.engines.vllm_prompts import VllmRules
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica import Replica
from gateway.tokenize.encoder import Encoder

_MOST_TRIES = 8
"""Prompts of a replica, counted otherwise than here, that are encoded by all other rules."""

_EQUAL_AGAIN = 20
"""Equal counts in a row that end what a different one has shown: the engine was started with other flags."""

_MOST_BYTES = 512 * 1024
"""Of the body of such a request: rendered eight times, it takes a thread about a second."""

_FIX = (
    "set models[].tokenizer, chat_template, chat_template_kwargs, content_format and "
    "exclude_tools_when_tool_choice_none to what the engine was started with (--tokenizer, --chat-template and so on), "
    "and serve other engines as a model of their own"
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
        equal: Equal counts in a row.
    """

    identity: tuple[object, ...]
    rules: ChatRules
    certain: bool = False
    tries: int = 0
    equal: int = 0


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
        replicas = [replica for replica in self._fleet.of(self._model) if replica.serves()]
        self._found = {each.id: self._found[each.id] for each in replicas if each.id in self._found}
        for replica in replicas:
            version, probe = (replica.server.version, replica.server.probe) if replica.server else (None, None)
            identity = (replica.facts.kind, version, probe)
            if (known := self._found.get(replica.id)) is None or known.identity != identity:
                replica.prompt_finding = ""
                rules = chat_rules(replica.facts.kind, version or "", excludes_tools=bool(self._excludes_tools))
                self._found[replica.id] = known = _Found(identity, rules)
                self._examine(replica, known, probe)
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
        if found is None:
            return
        found.equal = found.equal + 1 if own == counted else 0
        if found.equal == _EQUAL_AGAIN and found.tries:
            replica.prompt_finding, found.tries = "", 0
        if own == counted or found.tries == _MOST_TRIES or replica.prompt_finding:
            return
        if not 0 < len(request.body) <= _MOST_BYTES:
            return
        found.tries += 1
        seen = f"it counts {counted} prompt tokens of a request that has {own} here"
        present = self._encoder.rules
        others = list(other_rules(present)) if request.endpoint is Endpoint.CHAT else []
        try:
            fields = orjson.loads(request.body)
            now, *counts = await self._encoder.count(request, fields, [present, *others])
        except Overloaded:
            return
        excludes = VllmRules(excludes_tools=True)
        equal = [each for each, tokens in zip(others, counts, strict=True) if tokens == counted]
        has_idle_tools = fields.get("tool_choice") == "none" and fields.get("tools")
        if self._encoder.local is None and has_idle_tools and counted < own:
            equal = [each for each in others if each == excludes]  # counts by vLLM's /tokenize
            now = counted if present == excludes else now
        if now == counted:
            return  # it was encoded before the present rules were found
        learned = [
            each
            for each in equal
            if replica.facts.kind in (None, each.engine)
            and each.content_format is None
            and (self._excludes_tools is None or each.engine is not EngineKind.VLLM)
        ]
        if learned:
            found.rules, found.certain = learned[0], True
            _log.info("prompt_rules_found", replica=replica.id, rules=found.rules.label, because=seen)
            self._choose()
        if not learned or self._encoder.rules != found.rules or found.tries == _MOST_TRIES:
            self._differs(replica, seen, f"it counts as {equal[0].label}" if equal else "")

    def _examine(self, replica: Replica, found: _Found, probe: bytes | None) -> None:
        """Compare the tokens that an SGLang has made of the probe."""
        if replica.server is None or replica.facts.kind is not EngineKind.SGLANG:
            return
        self._encoder.takes_chats(probe is not None)
        if (local := self._encoder.local) is None or probe is None:
            if local is None and probe is None:
                cause = "the gateway has no tokenizer of the model, so chats are routed by their text"
                self._differs(replica, "its /tokenize takes no chat requests", cause)
            return
        for rules in (found.rules, *other_rules(found.rules)):
            with contextlib.suppress(TokenizerUnavailable):
                if local.encode(Endpoint.CHAT, PROBE, rules) == (probe,):
                    found.rules, found.certain = rules, True
                    return
        self._differs(replica, "it makes other tokens of a test prompt")

    def _choose(self) -> None:
        """Encode by the rules of most replicas: of those whose tokens have shown them, else whose kind is known."""
        found = self._found.values()
        voters = [each for each in found if each.certain] or [each for each in found if each.identity[0]] or found
        votes = Counter(each.rules for each in voters)
        present = self._encoder.rules
        if votes and votes[present] < max(votes.values()):
            self._encoder.use(votes.most_common(1)[0][0])
            _log.info("prompt_rules_in_use", model=self._model, rules=self._encoder.rules.label)

    def _differs(self, replica: Replica, seen: str, cause: str = "") -> None:
        cause = cause or "its tokenizer, chat template or template arguments are not the gateway's"
        replica.prompt_finding = f"{seen[:1].upper()}{seen[1:]}: {cause}. To do: {_FIX}."
        _log.warning("prompt_tokens_differ", replica=replica.id, model=self._model, seen=seen, cause=cause, fix=_FIX)
