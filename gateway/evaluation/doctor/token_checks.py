"""Token parity: a few probes are encoded here and by the engine, and compared token by token.

A text without a template comes first: if it differs, the tokenizers differ; if only conversations differ, the chat
templates do. Engines compute nothing for it (``…/render`` or ``/tokenize``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.core.errors import TokenizerUnavailable
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.request import Endpoint
from gateway.engines import ChatRules, chat_rules, other_rules
from gateway.evaluation.doctor.doctor_finding import DoctorFinding, Severity
from gateway.evaluation.doctor.engine_probe import EngineAccess, EngineProbe, ExaminedReplica
from gateway.explain.reference.overlap import common_tokens
from gateway.http_client import TransportError
from gateway.tokenize.backends import pack
from gateway.tokenize.local import LocalEncoder

_TEXT = "Hello, wörld!  Prices: 1,234.50 €\n\tif x != y: return [x, y]  # 日本語 and emoji 🙂\r\n"
_SYSTEM = {"role": "system", "content": "You are the assistant of a shop. Answer in one sentence."}
_QUESTION = {"role": "user", "content": "When do you open on Sunday?"}
_TURNS = [_QUESTION, {"role": "assistant", "content": "At ten."}, {"role": "user", "content": "And on Monday?  "}]
_TOOL = {
    "type": "function",
    "function": {
        "name": "opening_hours",
        "description": "Opening hours of a day.",
        "parameters": {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]},
    },
}
_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "opening_hours", "arguments": '{"day": "Sunday"}'},
}
_CALLED = [
    _SYSTEM,
    _QUESTION,
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "10:00 to 16:00"},
]


@dataclass(frozen=True, slots=True)
class TokenProbe:
    """One prompt to compare.

    Attributes:
        name: What it is, for a sentence.
        endpoint: Its API.
        fields: The request, without its model.
    """

    name: str
    endpoint: Endpoint
    fields: Mapping[str, Any]


TOKEN_PROBES: Sequence[TokenProbe] = (
    TokenProbe("a text", Endpoint.COMPLETIONS, {"prompt": _TEXT, "add_special_tokens": False}),
    TokenProbe("a question behind a system message", Endpoint.CHAT, {"messages": [_SYSTEM, _QUESTION]}),
    TokenProbe("a conversation of three messages", Endpoint.CHAT, {"messages": _TURNS}),
    TokenProbe("the result of a tool", Endpoint.CHAT, {"messages": _CALLED, "tools": [_TOOL]}),
)

_IN_FRONT_TOKENS = 12
_SHOWN_CHARS = 60


async def engine_tokens(access: EngineAccess, replica: ExaminedReplica, probe: TokenProbe) -> bytes | None:
    """The engine's token ids of a probe, little-endian u32; None if it does not tell them."""
    request = {"model": replica.model.id, **probe.fields}
    try:
        status, answer = await access.post(f"{probe.endpoint}/render", request)
        if status != 200:  # not offered, or refused for a reason that only concerns answers, such as tools
            # Ignores the engine's default arguments of the template, unlike the engine itself.
            if probe.endpoint is Endpoint.CHAT and replica.model.chat_template_kwargs:
                request["chat_template_kwargs"] = replica.model.chat_template_kwargs
            status, answer = await access.post("/tokenize", request)
    except TransportError:
        return None
    if status != 200:
        return None
    first = answer[0] if isinstance(answer, list) and answer else answer
    ids = first.get("token_ids", first.get("tokens")) if isinstance(first, dict) else None
    try:
        return pack(ids) if isinstance(ids, list) else None
    except (TypeError, OverflowError):
        return None


def engine_rules(probe: EngineProbe) -> ChatRules:
    """What an engine makes of chat requests, by its kind and release."""
    return chat_rules(probe.facts.kind, (probe.server.version if probe.server else None) or "")


def local_tokens(encoder: LocalEncoder, probe: TokenProbe, rules: ChatRules | None = None) -> bytes | None:
    """The gateway's token ids of a probe; None if it cannot be encoded, such as without a chat template."""
    try:
        given = () if rules is None or probe.endpoint is Endpoint.COMPLETIONS else (rules,)
        return b"".join(encoder.encode(probe.endpoint, probe.fields, *given))
    except Exception:  # noqa: BLE001 - a template may fail at anything, such as a system message it does not take
        return None


def parity_findings(
    replica: ExaminedReplica, encoder: LocalEncoder, rendered: Sequence[bytes | None], rules: ChatRules
) -> Sequence[DoctorFinding]:
    """Whether gateway and engine make the same tokens; at most one finding.

    Args:
        replica: The replica.
        encoder: The gateway's tokenizer and template.
        rendered: The engine's token ids of ``TOKEN_PROBES``; None for unknown ones.
        rules: Those of the engine.
    """
    for probe, ids in zip(TOKEN_PROBES, rendered, strict=True):
        own = local_tokens(encoder, probe, rules) if ids is not None else None
        if own is None or ids is None or own == ids:
            continue
        said = f"{first_difference(encoder, own, ids)} ({probe.name})."
        if probe.endpoint is Endpoint.CHAT:
            equal = next((each for each in other_rules(rules) if local_tokens(encoder, probe, each) == ids), None)
            if equal is not None and equal.engine is rules.engine and not equal.content_format:
                continue  # the gateway finds this out by itself
            said += f" Its tokens are those of {equal.label}." if equal else ""
        if probe.endpoint is Endpoint.COMPLETIONS:
            return [
                DoctorFinding(
                    "tokenizer-differs",
                    Severity.ERROR,
                    replica.where,
                    f"The gateway's tokenizer is not the engine's, so predictions are wrong: {said}",
                    f"set {replica.model_path}.tokenizer ({replica.model.tokenizer}) to the files the engine has "
                    "loaded, or to `engine`",
                )
            ]
        template = replica.model.chat_template
        return [
            DoctorFinding(
                "template-differs",
                Severity.ERROR,
                replica.where,
                f"The gateway's chat template is not the engine's, so predictions are wrong: {said}",
                f"set {replica.model_path}.chat_template ({'not set' if template is None else template}) to the "
                "file of "
                "the engine's --chat-template, and chat_template_kwargs to its --default-chat-template-kwargs",
            )
        ]
    return []


def untokenized(replica: ExaminedReplica) -> DoctorFinding:
    """The finding about an SGLang that makes no tokens of chat requests, where the gateway has no tokenizer."""
    return DoctorFinding(
        "chats-not-tokenized",
        Severity.ERROR,
        replica.where,
        "Its /tokenize takes no chat requests, and the gateway has no tokenizer, so chats are routed by their text.",
        f"set {replica.model_path}.tokenizer to a folder with the model's files, or use SGLang 0.5.12 or newer",
    )


def first_difference(encoder: LocalEncoder, own: bytes, engine: bytes) -> str:
    """Where two prompts first differ, as the beginning of a sentence.

    Args:
        encoder: Decodes ids.
        own: The gateway's token ids, little-endian u32.
        engine: The engine's.
    """
    at = common_tokens(own, engine)
    front = _decoded(encoder, own[max(at - _IN_FRONT_TOKENS, 0) * TOKEN_BYTES : at * TOKEN_BYTES])
    lengths = f"{len(own) // TOKEN_BYTES} tokens here, {len(engine) // TOKEN_BYTES} at the engine"
    here, there = (_token(encoder, ids, at) for ids in (own, engine))
    behind = f", behind {front}" if front else ""
    return f"{lengths}; token {at} is the first that differs{behind}: {here} here, {there} at the engine"


def _token(encoder: LocalEncoder, ids: bytes, at: int) -> str:
    one = ids[at * TOKEN_BYTES : (at + 1) * TOKEN_BYTES]
    if not one:
        return "the end"
    text = _decoded(encoder, one)
    return f"{int.from_bytes(one, 'little')} {f'({text})' if text else '(a special token)'}"


def _decoded(encoder: LocalEncoder, ids: bytes) -> str:
    """The text of ids in quotes; empty without text."""
    numbers = [int.from_bytes(ids[start : start + TOKEN_BYTES], "little") for start in range(0, len(ids), TOKEN_BYTES)]
    try:
        text = encoder.decode(numbers)
    except Exception:  # noqa: BLE001 - ids of another tokenizer may be beyond the vocabulary
        return ""
    return repr(text[-_SHOWN_CHARS:]) if text else ""


def unavailable(model_path: str, tokenizer: str, error: TokenizerUnavailable | OSError | ValueError) -> DoctorFinding:
    """The finding about a tokenizer that cannot be loaded."""
    return DoctorFinding(
        "tokenizer-unavailable",
        Severity.ERROR,
        f"{model_path}.tokenizer",
        f"The tokenizer {tokenizer} cannot be loaded ({error}), so the engine is asked for the tokens of every prompt.",
        f"set {model_path}.tokenizer to a folder with the model's tokenizer files",
    )
