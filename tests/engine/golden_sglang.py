"""Write down what SGLang's own code renders, so that the fast tests can check the encoder without it.

Its package is unpacked and not installed: neither Torch nor kernels are needed. What is not there (``torch``, and its
own packages besides the API, the parsers and the function calls) is replaced by names that mean nothing. The requests
pass through its own types, its check of requests and its conversion to token ids, with the tokenizer that ships here::

    pip download --no-deps sglang==0.5.23 && python -m zipfile -e sglang-0.5.23-*.whl 0.5.23
    pip download --no-deps sglang==0.5.22 && python -m zipfile -e sglang-0.5.22-*.whl 0.5.22
    pip download --no-deps sglang==0.5.10.post1 && python -m zipfile -e sglang-0.5.10.post1-*.whl 0.5.10.post1
    python -m venv venv && venv/bin/pip install transformers==5.19.0 jinja2 orjson fastapi jsonschema msgspec openai \\
        openai-harmony partial-json-parser interegular pillow requests aiohttp psutil uvloop dill anthropic
    for release in 0.5.23 0.5.22 0.5.10.post1; do venv/bin/python -m tests.engine.golden_sglang $release; done

The first writes ``tests/golden/sglang-0.5.23-chat.json``; earlier ones, named by their
folder, only how they dump tools.
"""

import abc
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.engine.cases import CASES, CHAT, TOOLS, Case, assistant, call, system, text, user
from tests.engine.formats import FORMAT_TEMPLATES
from tests.engine.places import DEMO, DEMO_TEMPLATE, GOLDEN

_OWN = ("sglang.srt.entrypoints.openai", "sglang.srt.parser", "sglang.srt.function_call", "sglang.srt.environ")
_FOLDERS = ("sglang", "sglang.srt", "sglang.srt.entrypoints")
_ABSENT = {"torch", "torchvision", "torchaudio", "triton", "xgrammar", "outlines", "llguidance", "pybase64"}

RELEASE = "0.5.23"
TEMPLATES = {"demo": DEMO_TEMPLATE, "parts": GOLDEN / "parts.jinja", "agent": GOLDEN / "agent.jinja"}


class _Nothing(abc.ABCMeta):
    """A name that is imported but not needed: false, empty, callable, a decorator that changes nothing."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing(name)

    def __bool__(cls) -> bool:
        return False

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __call__(cls, *given: Any, **named: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) and not named else super().__call__()


def _nothing(name: str) -> Any:
    members = {
        "__init__": lambda self, *_, **__: None,
        "__getattr__": lambda self, name: _nothing(name),
        "__class_getitem__": classmethod(lambda cls, _: cls),
        "__get_pydantic_core_schema__": classmethod(lambda *_: {"type": "any"}),
    }
    return _Nothing(name, (), members)


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the package's own folders without running their ``__init__``, and modules of nothing for the rest."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name in _FOLDERS:
            spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
            spec.submodule_search_locations = [str(self._root.joinpath(*name.split(".")))]
            return spec
        own = any(name == each or name.startswith(f"{each}.") for each in _OWN)
        if name.split(".", maxsplit=1)[0] in _ABSENT or (name.startswith("sglang.") and not own):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return (types.ModuleType if spec.name in _FOLDERS else _Module)(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


def _tool(number: int, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"tool_{number}", **function}}


_SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
_MANY = [_tool(number, description=f"Thing {number}.", parameters=_SCHEMA) for number in range(30)]
_FORMS = [
    _tool(0),
    _tool(1, description="No parameters."),
    _tool(2, parameters=_SCHEMA),
    _tool(3, parameters=_SCHEMA, description="Order.", strict=True),
    _tool(4, strict=False, description=None, parameters=None, extra=1),
    {"function": {"description": "Behind.", "name": "tool_5"}, "defer_loading": True, "other": 2},
    {"type": "function", "function": {"strict": None, "name": "tool_6", "defer_loading": False}},
    {"type": "function", "function": {"name": "tool_7", "defer_loading": True}},
]
_NAMED = {"type": "function", "function": {"name": "tool_3"}}
_THREE = [text("First part."), text("Second part. "), text("Third?")]
_RESULT = {"role": "tool", "tool_call_id": "call_1"}
_Q = user("Question?")


def _chat(name: str, *messages: Any, **fields: Any) -> Case:
    return Case(f"sglang: {name}", CHAT, {"messages": list(messages), **fields})


def _called(name: str, arguments: Any, **more: Any) -> Case:
    return _chat(name, _Q, assistant(None, tool_calls=[call("f", arguments, **more)]), {**_RESULT, "content": "r"}, _Q)


OWN_CASES = [
    _chat("one string", user("Hello there")),
    _chat("one part", user(_THREE[:1])),
    _chat("three parts", user(_THREE)),
    _chat("an empty part", user([text(""), *_THREE])),
    _chat("no parts", user([]), assistant("a"), _Q),
    _chat("parts of a system message", system(_THREE), _Q),
    _chat("parts of a developer message", {"role": "developer", "content": _THREE}, _Q),
    _chat("developer and system", {"role": "developer", "content": "Dev."}, system("Sys."), _Q),
    _chat("a late system message", _Q, system("Late."), _Q),
    _chat("a role in capitals", {"role": "System", "content": "Be brief."}, _Q),
    _chat("billing header", system("x-anthropic-billing-header: cc=1;\nYou help."), _Q),
    _chat("a tool result in parts", _Q, assistant("x"), {**_RESULT, "content": _THREE}, _Q),
    _chat("a tool result without content", _Q, assistant("x"), _RESULT, _Q),
    _chat("names", user("x", name="Ann"), assistant("y", name="Bot"), user("z", name="Ann")),
    _chat(
        "unknown fields", user("x", extra=1, cache_control={"type": "ephemeral"}), nonsense=True, documents=[{"a": 1}]
    ),
    _chat("unknown fields of parts", user([text("x", cache_control={"type": "ephemeral"}), text("y")])),
    _chat("reasoning content", _Q, assistant("A.", reasoning_content="Because."), _Q),
    _chat("reasoning", _Q, assistant("A.", reasoning="Because."), _Q),
    _chat("thinking parts", _Q, assistant([{"type": "thinking", "thinking": "hm"}, text("A."), text("B.")]), _Q),
    _chat("ends with an answer", _Q, assistant("An answer.")),
    _chat("ends with an answer in parts", _Q, assistant(_THREE)),
    _chat("continues an answer", _Q, assistant("It begins "), continue_final_message=True, add_generation_prompt=False),
    _chat("continues an empty answer", _Q, assistant(""), continue_final_message=True),
    _chat("continues a question", _Q, continue_final_message=True),
    _chat("asks for no generation prompt", _Q, add_generation_prompt=False),
    _chat("asks for special tokens", _Q, add_special_tokens=True),
    _chat("asks for truncation", _Q, truncate_prompt_tokens=3),
    *(_chat(f"{count} tools", _Q, tools=_MANY[:count]) for count in (1, 2, 30)),
    _chat("an empty list of tools", _Q, tools=[]),
    _chat("tools of all forms", system("Use tools."), _Q, tools=_FORMS),
    _chat("tools with more keys", _Q, tools=TOOLS),
    *(
        _chat(f"tool_choice {choice}", _Q, tools=_MANY[:5], tool_choice=choice)
        for choice in ("none", "auto", "required")
    ),
    _chat("a named tool", _Q, tools=_MANY[:5], tool_choice=_NAMED),
    _chat("tools of a system message", {**system("Use tools."), "tools": _FORMS[1:4]}, _Q),
    _chat(
        "types that are renamed",
        _Q,
        tools=[_tool(0, parameters={"type": "object", "properties": {"x": {"type": "int"}}})],
    ),
    _called("spaces in arguments", '{ "a" :1,\n "b": [ 1,2 ] , "c":"é" }'),
    _called("arguments as an object", {"a": 1, "b": {"c": None}}),
    _called("an index", "{}", index=3),
    _called("numbers in arguments", '{"a": 1e22, "b": 1.50, "c": 12345678901234567890123, "d": 1e-7}'),
    _called("invalid arguments", "{a"),
    _called("empty arguments", ""),
    _called("arguments that are a list", "[1]"),
    _chat("no calls", _Q, assistant("x", tool_calls=[]), _Q),
    _chat("effort", _Q, reasoning_effort="high"),
    _chat("no effort", _Q, reasoning_effort="none"),
    _chat("effort as a number", _Q, reasoning_effort=0.5),
    _chat("reasoning enabled", _Q, reasoning={"enabled": True}),
    _chat("reasoning with an effort", _Q, reasoning={"effort": "low"}, chat_template_kwargs={"thinking": False}),
    _chat("arguments of the template", _Q, chat_template_kwargs={"enable_thinking": False, "reasoning_effort": "low"}),
]


def main(folder: Path) -> None:
    """Render everything with the release in a folder, write the file."""
    sys.meta_path.insert(0, _Finder(folder))
    target = GOLDEN / f"sglang-{RELEASE}-chat.json"
    if folder.name != RELEASE:
        document = json.loads(target.read_text(encoding="utf-8"))
        protocol = importlib.import_module("sglang.srt.entrypoints.openai.protocol")
        document["tools"][folder.name] = _dumped(protocol)
    else:
        serving = importlib.import_module("sglang.srt.entrypoints.openai.serving_chat")
        formats = importlib.import_module("sglang.srt.parser.jinja_template_utils")
        detect = formats.detect_jinja_template_content_format
        others = [*FORMAT_TEMPLATES, *(path.read_text(encoding="utf-8") for path in TEMPLATES.values()), "{{ image }}"]
        document = {
            "engine": f"SGLang {RELEASE}",
            "written_by": "python -m tests.engine.golden_sglang",
            "content_formats": [[each, detect(each)] for each in others],
            "tools": {RELEASE: _dumped(importlib.import_module("sglang.srt.entrypoints.openai.protocol"))},
            "requests": [],
        }
        chats = {name: _serving(serving, formats, path.read_text(encoding="utf-8")) for name, path in TEMPLATES.items()}
        for case in [*OWN_CASES, *(case for case in CASES if case.endpoint == CHAT and not case.daily)]:
            ids = {name: _rendered(serving, chat, case.body) for name, chat in chats.items()}
            document["requests"].append({"name": case.name, "body": case.body, "token_ids": ids})
    requests = document.pop("requests")
    lines = ",\n".join(json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in requests)
    head = json.dumps(document, indent=1, ensure_ascii=False)
    target.write_text(f'{head[:-2]},\n "requests": [\n{lines}\n ]\n}}\n', encoding="utf-8")
    print(f"{target}: {len(requests)} requests", flush=True)


def _dumped(protocol: Any) -> list[list[Any]]:
    # Before 0.5.23 a null for ``strict`` is refused.
    taken = [tool for tool in _FORMS if tool["function"].get("strict", "") is not None]
    return [[tool, protocol.Tool.model_validate(tool).model_dump()] for tool in taken]


def _serving(serving: Any, formats: Any, template: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(DEMO))
    tokenizer.chat_template = template
    serving.get_serving = lambda: SimpleNamespace(
        default_chat_template_kwargs=None, trust_request_chat_template=False, return_input_ids=False
    )
    serving.get_model = lambda: SimpleNamespace(context_length=None, revision=None)
    serving.GenerateReqInput = SimpleNamespace
    model = SimpleNamespace(
        is_multimodal=False,
        hf_config=SimpleNamespace(model_type="qwen2", architectures=[]),
        get_default_sampling_params=dict,
    )
    manager = SimpleNamespace(
        tokenizer=tokenizer,
        model_config=model,
        config_value=lambda _: None,
        server_args=None,
        served_model_name="demo",
        model_path="demo",
    )
    templates = SimpleNamespace(
        chat_template_name=None,
        python_chat_template=None,
        reasoning_config=None,
        force_reasoning=False,
        jinja_template_content_format=formats.detect_jinja_template_content_format(template),
        jinja_template_may_reorder_tool_results=formats.jinja_template_may_reorder_tool_results(template),
    )
    return serving.OpenAIServingChat(manager, templates)


def _rendered(serving: Any, chat: Any, body: dict[str, Any]) -> list[int] | str:
    """Token ids; or the refusal."""
    try:
        request = serving.ChatCompletionRequest.model_validate(json.loads(json.dumps(body)))
        if refusal := chat._validate_request(request):
            return str(refusal)[:200]
        ids: list[int] = chat._convert_to_internal_request(request)[0].input_ids
    except Exception as refusal:  # its API answers 400 or 500
        return f"{type(refusal).__name__}: {refusal}"[:200]
    return ids


if __name__ == "__main__":
    main(Path(sys.argv[1]))
