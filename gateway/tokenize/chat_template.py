"""Chat templates: rendered by the reference engine (jinja2, set up as the engine's is), or by a faster one that proved
itself equal.

The engine renders with transformers' ``apply_chat_template``. Its releases differ in what they do to messages before a
template sees them (5.20 and later copy the reasoning under a third name), and the gateway's would not be the engine's.
So the set-up is here, as in the releases that vLLM 0.32 accepts (transformers 5.16 to 5.19,
``utils/chat_template_utils.py``, ``_compile_jinja_template`` and ``render_jinja_template``).

minijinja renders the same template language about five times faster, but it is another implementation: it prints some
numbers differently and lacks some of Python's operators. So it is used only for templates whose output over a built-in
corpus is byte for byte that of the reference, and only for requests of the shapes the corpus covers; everything else
takes the reference path.
"""

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import minijinja

from gateway.core.engine_facts import EngineKind
from gateway.core.errors import TokenizerUnavailable
from gateway.core.prompt import ContentFormat, Message
from gateway.engines import ChatRules

_COMMON_ARGUMENTS = frozenset({"add_generation_prompt", "continue_final_message"})
_PROBE_TOOL, _PROBE_SYSTEM = "probe_of_the_tools_place", "Probe of the system message's place."
_END_MARK = "CONTINUE_FINAL_MESSAGE_TAG "


class ChatTemplate:
    """One chat template, ready to render.

    Args:
        source: The Jinja text.
        special_tokens: Variables such as ``bos_token`` that templates may print.
        content_format: What ``content`` is; None finds it out from the template, as vLLM does.
        fast: Whether the fast renderer may be used; settle it with ``proves_equal``.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        content_format: ContentFormat | None = None,
        *,
        fast: bool,
    ) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens)
        self.content_format = content_format or detect_content_format(source)
        self._given_format = content_format
        self.knows_developer = "'developer'" in source or '"developer"' in source
        self._fast = _fast_environment(source) if fast else None
        self._reference: jinja2.Template | None = None

    def format_for(self, rules: ChatRules) -> ContentFormat:
        """What it is taken to expect by an engine."""
        if given := rules.content_format or self._given_format:
            return given
        return self.content_format if rules.engine is EngineKind.VLLM else detect_sglang_format(self.source)

    @property
    def tells_time(self) -> bool:
        """Whether it prints the time."""
        return "strftime_now" in self.source

    @property
    def tools_first(self) -> bool:
        """Whether it prints tools in front of the system message."""
        tool = {"type": "function", "function": {"name": _PROBE_TOOL, "description": "", "parameters": {}}}
        messages: list[Message] = [{"role": "system", "content": _PROBE_SYSTEM}, {"role": "user", "content": "x"}]
        if self.content_format == "openai":
            messages = [message | {"content": [{"type": "text", "text": message["content"]}]} for message in messages]
        try:
            text = self.render_reference(messages, [tool], {"add_generation_prompt": True})
        except TokenizerUnavailable:
            return False
        return -1 < text.find(_PROBE_TOOL) < text.find(_PROBE_SYSTEM)

    def syntax_tree(self) -> jinja2.nodes.Template:
        """Its syntax tree, a new one at each call."""
        return _environment().parse(self.source)

    @property
    def backend(self) -> str:
        """Name of the renderer in use, for the log."""
        return "minijinja" if self._fast else "jinja2"

    def render(self, messages: list[Message], tools: list[dict[str, Any]] | None, arguments: Mapping[str, Any]) -> str:
        """Render a conversation.

        Raises:
            TokenizerUnavailable: the template refuses the conversation. The engine will refuse it too, and say why.
        """
        if self._fast is not None and self._is_common(messages, arguments):
            try:
                return self._fast.render_template(
                    "chat",
                    messages=messages,
                    tools=tools,
                    add_generation_prompt=arguments["add_generation_prompt"],
                    **self.special_tokens,
                )
            except minijinja.TemplateError:
                pass  # the reference decides whether this is an error, and words it
        return self.render_reference(messages, tools, arguments)

    def render_reference(
        self, messages: Sequence[Message], tools: list[dict[str, Any]] | None, arguments: Mapping[str, Any]
    ) -> str:
        """Render as the engine does."""
        if not messages:
            raise TokenizerUnavailable("a conversation without messages cannot be rendered")
        variables: dict[str, Any] = {"documents": None, **self.special_tokens, **arguments}
        continued = variables.pop("continue_final_message", False)
        try:
            if self._reference is None:
                self._reference = _environment().from_string(self.source)
            if not continued:
                return self._reference.render(messages=messages, tools=tools, **variables)
            marked, ending = _end_marked(messages)
            return _cut_at_mark(self._reference.render(messages=marked, tools=tools, **variables), ending)
        except Exception as error:  # a template is a program, it may fail in any way
            raise TokenizerUnavailable(f"the chat template refuses this conversation: {error}") from error

    def proves_equal(self, corpus: Sequence[tuple[list[Message], list[dict[str, Any]] | None, dict[str, Any]]]) -> bool:
        """Whether the fast renderer gives the reference's bytes for every conversation of the corpus.

        A conversation that both refuse counts as equal; one that only the fast renderer accepts does not.
        """
        if self._fast is None:
            return False
        for messages, tools, arguments in corpus:
            try:
                expected: str | None = self.render_reference(messages, tools, arguments)
            except TokenizerUnavailable:
                expected = None
            try:
                got: str | None = self._fast.render_template(
                    "chat",
                    messages=messages,
                    tools=tools,
                    add_generation_prompt=arguments["add_generation_prompt"],
                    **self.special_tokens,
                )
            except minijinja.TemplateError:
                got = None
            if got != expected:
                return False
        return True

    def _is_common(self, messages: Sequence[Message], arguments: Mapping[str, Any]) -> bool:
        """Whether the fast renderer's proof covers a request of this shape."""
        kind = str if self.content_format == "string" else list
        return (
            _COMMON_ARGUMENTS.issuperset(arguments)
            and not arguments.get("continue_final_message")
            and bool(messages)
            and not any(
                "reasoning_content" in message
                or "tools" in message
                or (type(message["content"]) is not kind and message["role"] != "tool")
                for message in messages
            )
        )

    def use_reference(self) -> None:
        """Give the fast renderer up."""
        self._fast = None


def _end_marked(messages: Sequence[Message]) -> tuple[list[Message], str]:
    """The conversation with a mark behind its last text, and that text."""
    last = messages[-1]
    content = last.get("content")
    if isinstance(content, str):
        return [*messages[:-1], {**last, "content": content + _END_MARK}], content
    parts = list(content or ())
    for position in reversed(range(len(parts))):
        part = parts[position]
        if "text" in part:
            parts[position] = {**part, "text": part["text"] + _END_MARK}
            return [*messages[:-1], {**last, "content": parts}], part["text"]
    raise ValueError("the final message has no text to continue")


def _cut_at_mark(rendered: str, ending: str) -> str:
    """What stands before the mark: the final message left open, without what the template puts behind messages."""
    if ending.strip() not in rendered or _END_MARK.strip() not in rendered:
        raise ValueError("the final message does not appear in the rendered conversation")
    end = rendered.rindex(_END_MARK.strip())
    # Where the template strips white space, the mark has lost its own, and the text before it keeps none either.
    return rendered[:end] if rendered.startswith(_END_MARK, end) else rendered[:end].rstrip()


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` tells training tools what the assistant said. Here its body is printed, nothing else."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Read up to ``{% endgeneration %}``. The body has its own scope, as the block of a call has."""
        line = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def check_syntax(source: str) -> None:
    """Whether a text is a template at all.

    Raises:
        TokenizerUnavailable: it is none; the message says where.
    """
    try:
        _environment().parse(source)
    except jinja2.TemplateSyntaxError as error:
        raise TokenizerUnavailable(f"the chat template is not valid, line {error.lineno}: {error.message}") from error


@functools.cache
def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _refuse(message: str) -> str:
    raise jinja2.TemplateError(message)


def _fast_environment(source: str) -> minijinja.Environment | None:
    try:
        environment = minijinja.Environment(
            templates={"chat": source},
            filters={"tojson": _tojson},
            globals={"raise_exception": _raise_exception, "strftime_now": _strftime_now},
            trim_blocks=True,
            lstrip_blocks=True,
            auto_escape_callback=lambda _name: False,
            debug=False,
        )
        environment.render_template("chat", messages=[{"role": "user", "content": "x"}], add_generation_prompt=True)
    except minijinja.TemplateError as error:
        # A template may refuse this one message; only one that cannot be compiled is out.
        return environment if error.kind != "SyntaxError" else None
    return environment


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> str:
    raise minijinja.TemplateError(message)


def _strftime_now(format: str) -> str:  # noqa: A002 - the name templates use
    return datetime.datetime.now().strftime(format)


@functools.lru_cache(maxsize=64)
def detect_content_format(source: str) -> ContentFormat:
    """Whether a template loops over the parts of a message's content (``openai``) or wants one ``string``.

    Decides as vLLM's ``_detect_content_format`` does (renderers/hf.py), also where that is not what a reader would say:
    a name that ``set`` binds to a message's content does not count (unless it is ``content``), and a template whose
    loops or assignments over ``messages`` bind anything but a plain name counts as wanting strings.
    """
    try:
        tree = _environment().parse(source)
    except jinja2.TemplateSyntaxError:
        return "string"
    lists = _bound(tree, {"messages"})
    if lists is None:
        return "string"
    loops = list(tree.find_all(jinja2.nodes.For))
    targets = [loop.target for loop in loops if _reads(loop.iter, lists)]
    messages = {target.name for target in targets if isinstance(target, jinja2.nodes.Name)}
    if not all(isinstance(target, jinja2.nodes.Name) for target in targets):
        return "string"
    parameters: dict[int, set[str]] = {}  # by loop inside a macro: the macro's parameters that are a message's content
    for macro in tree.find_all(jinja2.nodes.Macro):
        names = _content_parameters(tree, macro, messages)
        parameters |= {id(loop): names for loop in macro.find_all(jinja2.nodes.For)}
    for loop in loops:
        if _reads(loop.iter, messages, "content"):
            return "openai" if isinstance(loop.target, jinja2.nodes.Name) else "string"
        if isinstance(loop.iter, jinja2.nodes.Name) and loop.iter.name in parameters.get(id(loop), {"content"}):
            return "openai" if isinstance(loop.target, jinja2.nodes.Name) else "string"
    return "string"


@functools.lru_cache(maxsize=64)
def detect_sglang_format(source: str) -> ContentFormat:
    """As ``detect_content_format``, decided as SGLang's ``detect_jinja_template_content_format`` does
    (parser/jinja_template_utils.py): by words, and by loops over a message of one of three names."""
    if any(word in source for word in ("image", "audio", "video", "vision")):
        return "openai"
    try:
        loops = _environment().parse(source).find_all(jinja2.nodes.For)
    except jinja2.TemplateSyntaxError:
        return "string"
    return "openai" if any(_reads(loop.iter, {"message", "msg", "m"}, "content") for loop in loops) else "string"


def _reads(node: jinja2.nodes.Node | None, names: set[str], key: str | None = None) -> bool:
    """Whether an expression is one of ``names`` (or its ``key``), perhaps sliced, filtered or tested."""
    while isinstance(node, (jinja2.nodes.Filter, jinja2.nodes.Test)) or (
        isinstance(node, jinja2.nodes.Getitem) and isinstance(node.arg, jinja2.nodes.Slice)
    ):
        node = node.node
    if key is not None:
        if isinstance(node, jinja2.nodes.Getitem):
            if not (isinstance(node.arg, jinja2.nodes.Const) and node.arg.value == key):
                return False
            node = node.node
        elif isinstance(node, jinja2.nodes.Getattr) and node.attr == key:
            node = node.node
        else:
            return False
    return isinstance(node, jinja2.nodes.Name) and node.name in names


def _bound(tree: jinja2.nodes.Template, names: set[str]) -> set[str] | None:
    """Names that ``set`` statements bind to one of ``names``, followed to the end; None if one binds no plain name."""
    found = set(names)
    while True:
        size = len(found)
        for assign in tree.find_all(jinja2.nodes.Assign):
            if _reads(assign.node, found):
                if not isinstance(assign.target, jinja2.nodes.Name):
                    return None
                found.add(assign.target.name)
        if len(found) == size:
            return found


def _content_parameters(tree: jinja2.nodes.Template, macro: jinja2.nodes.Macro, messages: set[str]) -> set[str]:
    """Parameters of a macro that a message's content is given for in some call."""
    own = [parameter.name for parameter in macro.args]
    found: set[str] = set()
    for call in tree.find_all(jinja2.nodes.Call):
        if isinstance(call.node, jinja2.nodes.Name) and call.node.name == macro.name:
            given = [*zip(own, call.args, strict=False), *((keyword.key, keyword.value) for keyword in call.kwargs)]
            found |= {name for name, value in given if name in own and _reads(value, messages, "content")}
    return found
