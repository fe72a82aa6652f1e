"""Request bodies: validated as in the engine, and normalized; the cache salt by the rules of each engine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.core.errors import TokenizerUnavailable
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.request import Endpoint
from gateway.simulator.answers import AnswerRequest, ToolChoice
from gateway.simulator.call import EngineError
from gateway.simulator.config import Identity
from gateway.tokenize.local import LocalEncoder

_LONGEST = 128
_FORBIDDEN = frozenset("@/\\\0")


def vllm_salt(fields: Mapping[str, Any]) -> str:
    """``cache_salt``, empty for none, by the rules of vLLM 0.32.0, ``vllm/entrypoints/generate/base/protocol.py``.

    They hold for every endpoint that generates or renders. Raises EngineError.
    """
    salt = fields.get("cache_salt")
    if salt is None:
        return ""
    if not isinstance(salt, str) or not salt or len(salt) > _LONGEST or _FORBIDDEN & set(salt):
        raise EngineError(
            400, f"cache_salt must be 1 to {_LONGEST} characters long and hold none of @ / \\ NUL", "cache_salt"
        )
    return salt


def sglang_salt(fields: Mapping[str, Any]) -> str:
    """``cache_salt`` and ``extra_key``, one behind the other; empty for none. Raises EngineError.

    Any text is valid; an empty one means none. Lists of texts pass the request's validation and fail later. (SGLang
    0.5.23, ``sglang/srt/entrypoints/openai/protocol.py`` and ``serving_base.py``.)
    """
    found = ""
    for name in ("cache_salt", "extra_key"):
        value = fields.get(name)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            if value:
                raise EngineError(500, f"Internal server error: {name} must be a string, not a list")
        elif isinstance(value, str | None):
            found += value or ""
        else:
            raise EngineError(400, f"{name} must be a string or a list of strings", name)
    return found


DEFAULT_MAX_TOKENS = 16
_MOST_LOGPROBS = 20
_FREE_JSON = {"type": "object", "properties": {"answer": {"type": "string"}}}

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation request.

    Attributes:
        endpoint: Which API was called.
        model: Name of the model or adapter, as it answers.
        adapter: LoRA adapter, empty for none.
        prompts: Little-endian u32 ids of each prompt.
        n: Answers for each prompt.
        wish: Options of the answers.
        named_tool: The function was named by the request, not left to the model.
        stream: Answer with server-sent events.
        include_usage: End the stream with a usage chunk.
        continuous_usage: Report usage with every chunk.
        salt: Cache salt, empty for none.
        logprobs: Number of alternatives for each token; None: no log probabilities.
        prompt_logprobs: The same for the prompt; its tokens are then never read from the cache.
        return_token_ids: Return the token ids.
        continues: The prompt that the last message answers, and the text of that message, which is to be continued.
    """

    endpoint: Endpoint
    model: str
    adapter: str
    prompts: tuple[bytes, ...]
    n: int
    wish: AnswerRequest
    named_tool: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    salt: str
    logprobs: int | None
    prompt_logprobs: int | None
    return_token_ids: bool
    continues: tuple[bytes, str] | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts together."""
        return sum(map(len, self.prompts)) // TOKEN_BYTES


class RequestReader:
    """Reads bodies for one model and its adapters.

    Args:
        encoder: Tokenizer and chat template.
        model: Its name.
        adapters: LoRA adapter by requested model name.
        identity: Has the limit in tokens.
        read_salt: Takes the cache salt from a body, empty for none. Raises EngineError.
        encode: Token ids of prompts, as ``LocalEncoder.encode``.
    """

    def __init__(
        self,
        encoder: LocalEncoder,
        *,
        model: str,
        adapters: Mapping[str, str],
        identity: Identity,
        read_salt: Callable[[Fields], str],
        encode: Callable[[Endpoint, Fields], tuple[bytes, ...]],
    ) -> None:
        self._encoder = encoder
        self._model = model
        self._adapters = adapters
        self._identity = identity
        self._read_salt = read_salt
        self._encode = encode

    def prompts(self, endpoint: Endpoint, fields: Fields) -> tuple[bytes, ...]:
        """The token ids of a request's prompts. Raises EngineError for invalid or too long prompts."""
        self._adapter(fields)
        if endpoint is Endpoint.CHAT:
            _check_messages(fields)
        elif fields.get("prompt") is None:
            raise EngineError(400, "prompt is required", "prompt")
        try:
            prompts = self._encode(endpoint, fields)
        except TokenizerUnavailable as error:
            raise EngineError(400, str(error)) from error
        for prompt in prompts:
            if not prompt:
                raise EngineError(400, "The prompt must not be empty", "prompt")
            if len(prompt) // TOKEN_BYTES >= self._identity.context:
                raise self._too_long(len(prompt) // TOKEN_BYTES)
        return prompts

    def generation(self, endpoint: Endpoint, fields: Fields) -> Generation:
        """A complete generation request. Raises EngineError."""
        adapter = self._adapter(fields)
        chat = endpoint is Endpoint.CHAT
        stream = _flag(fields, "stream")
        options = fields.get("stream_options")
        if options is not None and not stream:
            raise EngineError(400, "Stream options can only be defined when `stream=True`.", "stream_options")
        if options is not None and not isinstance(options, Mapping):
            raise EngineError(400, "stream_options must be an object", "stream_options")
        include_usage = _flag(options or {}, "include_usage")
        prompt_logprobs = _count(fields, "prompt_logprobs", 0)
        if prompt_logprobs is not None and stream:
            raise EngineError(400, "`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
        salt = self._read_salt(fields)
        logprobs = _chat_logprobs(fields) if chat else _count(fields, "logprobs", 0)
        if logprobs is not None and logprobs > _MOST_LOGPROBS:
            raise EngineError(400, f"at most {_MOST_LOGPROBS} logprobs can be asked for", "logprobs")
        if not chat and prompt_logprobs is None and _flag(fields, "echo"):
            prompt_logprobs = logprobs  # the prompt is part of such an answer
        tool, named = _tool(fields) if chat else (None, False)
        n = _count(fields, "n", 1) or 1
        prompts = self.prompts(endpoint, fields)
        longest = max(map(len, prompts)) // TOKEN_BYTES
        continues = self._continued(fields) if chat and _flag(fields, "continue_final_message") else None
        return Generation(
            endpoint=endpoint,
            model=adapter or self._model,
            adapter=adapter,
            prompts=prompts,
            n=n,
            wish=AnswerRequest(
                # As engines do for every chat; agents take an answer that ends at a limit for a broken one.
                max_tokens=self._max_tokens(fields, longest, continues, called=bool(chat and fields.get("tools"))),
                min_tokens=_count(fields, "min_tokens", 0) or 0,
                ignore_eos=_flag(fields, "ignore_eos"),
                stop=_stop(fields),
                seed=_count(fields, "seed", None),
                tool=tool,
                schema=_schema(fields),
            ),
            named_tool=named,
            stream=stream,
            include_usage=include_usage,
            continuous_usage=include_usage and _flag(options or {}, "continuous_usage_stats"),
            salt=salt,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            return_token_ids=_flag(fields, "return_token_ids"),
            continues=continues,
        )

    def _continued(self, fields: Fields) -> tuple[bytes, str]:
        """The prompt that the last message answers, and its text so far."""
        if fields.get("add_generation_prompt"):
            both = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
            raise EngineError(400, both, "continue_final_message")
        *before, last = fields["messages"]
        asked = {**fields, "messages": before, "continue_final_message": False, "add_generation_prompt": True}
        try:
            (prompt,) = self._encode(Endpoint.CHAT, asked)
        except TokenizerUnavailable:
            prompt = b""
        return prompt, last["content"] if isinstance(last.get("content"), str) else ""

    def _adapter(self, fields: Fields) -> str:
        """The requested adapter, empty for none. Raises the engine's 404 if another model is asked for."""
        model = fields.get("model", self._model)
        if model is not None and not isinstance(model, str):
            raise EngineError(400, "model must be a string", "model")
        if not model or model == self._model:
            return ""
        if model not in self._adapters:
            raise EngineError(404, f"The model `{model}` does not exist.", "model")
        return self._adapters[model]

    def _max_tokens(self, fields: Fields, longest: int, continues: tuple[bytes, str] | None, *, called: bool) -> int:
        asked = None
        for name in ("max_completion_tokens", "max_tokens"):
            asked = asked if asked is not None else _count(fields, name, 1)
        room = self._identity.context - longest
        if asked is None:
            begun = len(self._encoder.encode_text(continues[1])) // TOKEN_BYTES if continues is not None else 0
            return room if called else max(min(DEFAULT_MAX_TOKENS - begun, room), 1)
        if asked > room:
            raise self._too_long(longest, asked)
        return asked

    def _too_long(self, prompt: int, answer: int = 1) -> EngineError:
        return EngineError(
            400,
            f"This model's maximum context length is {self._identity.context} tokens. However, you requested "
            f"{prompt + answer} tokens ({prompt} in the prompt, {answer} for the answer). Please reduce the length of "
            "either one.",
        )


def _flag(fields: Fields, name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise EngineError(400, f"{name} must be a boolean", name)
    return bool(value)


def _count(fields: Fields, name: str, least: int | None) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise EngineError(400, f"{name} must be an integer{bound}, got {value!r}", name)
    return value


def _check_messages(fields: Fields) -> None:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise EngineError(400, "messages must be a list of at least one message", "messages")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise EngineError(400, f"{where} must be an object with a role", f"{where}.role")
        if not isinstance(message.get("content"), str | list | None):
            raise EngineError(400, f"{where}.content must be a string or a list of parts", f"{where}.content")


def _chat_logprobs(fields: Fields) -> int | None:
    alternatives = _count(fields, "top_logprobs", 0)
    if _flag(fields, "logprobs"):
        return alternatives or 0
    if alternatives:
        raise EngineError(400, "when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    return None


def _stop(fields: Fields) -> tuple[str, ...]:
    stop = fields.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(item, str) and item for item in stops):
        raise EngineError(400, "stop must be a non-empty string or a list of them", "stop")
    return tuple(stops)


def _schema(fields: Fields) -> Mapping[str, Any] | None:
    """The schema in ``response_format``."""
    wanted = fields.get("response_format")
    if wanted is None:
        return None
    if not isinstance(wanted, Mapping):
        raise EngineError(400, "response_format must be an object", "response_format")
    if wanted.get("type") == "json_object":
        return _FREE_JSON
    if wanted.get("type") != "json_schema":
        return None
    outer = wanted.get("json_schema")
    schema = outer.get("schema") if isinstance(outer, Mapping) else None
    if not isinstance(schema, Mapping):
        raise EngineError(400, "response_format.json_schema.schema must be an object", "response_format")
    return schema


def _tool(fields: Fields) -> tuple[ToolChoice | None, bool]:
    """The call that ``tools`` and ``tool_choice`` force, and whether the request named it."""
    tools = fields.get("tools") or []
    if not isinstance(tools, list):
        raise EngineError(400, "tools must be a list", "tools")
    functions: dict[str, Mapping[str, Any]] = {}
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise EngineError(400, f"tools[{index}].function must be an object with a name", f"tools[{index}]")
        functions[function["name"]] = function
    choice = fields.get("tool_choice")
    if choice is None or choice in ("auto", "none"):
        return None, False
    if not functions:
        raise EngineError(400, "When using `tool_choice`, `tools` must be set.", "tool_choice")
    name = next(iter(functions)) if choice == "required" else None
    if isinstance(choice, Mapping) and isinstance(choice.get("function"), Mapping):
        name = choice["function"].get("name")
    if not isinstance(name, str) or name not in functions:
        raise EngineError(400, "tool_choice must be auto, none, required or one of the tools", "tool_choice")
    schema = functions[name].get("parameters")
    return ToolChoice(name, schema if isinstance(schema, Mapping) else {}), choice != "required"
