"""Loads a model's tokenizer and chat template, and verifies the fast implementations against the reference.

Names a configuration may use:

* ``builtin:demo``: the small tokenizer shipped with the package, the one of the simulated engine.
* ``tiktoken:NAME``, ``tiktoken:FILE`` or ``tiktoken:NAME:FILE``: a tiktoken encoding (``o200k_base``), a file of ranks,
  or such a file whose text is split as for the encoding.
* anything else: a folder, or the id of a model on the hub, loaded by transformers.
"""

import base64
import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.core.errors import TokenizerUnavailable
from gateway.core.prompt import ContentFormat
from gateway.engines import ChatRules
from gateway.tokenize import proof_corpus as corpus
from gateway.tokenize.backends import (
    FastTokens,
    HuggingFaceTokens,
    TiktokenTokens,
    TokenBackend,
    TransformersTokens,
    decodes_equally,
    proves_equal,
)
from gateway.tokenize.chat_template import ChatTemplate, check_syntax
from gateway.tokenize.local import LocalEncoder
from gateway.tokenize.message_tokens import MessageTokens, boundaries
from gateway.tokenize.printed_content import prints_content
from gateway.tokenize.template_proof import prints_messages_alone

BUILTIN = Path(__file__).parent / "builtin"

_SEGMENT_BYTES_PER_MIB = 2**19
_MESSAGE_BYTES_PER_MIB = 2**19
"""Parts of the memory for tokens: fastokens keeps text between added tokens and its tokens, the gateway only those of
messages."""
FILE_NAME = "split_pattern.txt"
"""A file beside the ranks with the model's own expression."""

DEFAULT = "cl100k_base"
"""Used where neither the configuration nor a file says otherwise."""

_MAX_CHARACTERS = 10_000
"""Longest expression of a file; those of published models have less than a thousand characters."""

_R50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K = "|".join(
    (
        r"'(?i:[sdmt]|ll|ve|re)",
        r"[^\r\n\p{L}\p{N}]?+\p{L}++",
        r"\p{N}{1,3}+",
        r" ?[^\s\p{L}\p{N}]++[\r\n]*+",
        r"\s++$",
        r"\s*[\r\n]",
        r"\s+(?!\S)",
        r"\s",
    )
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)

PATTERNS = {
    "cl100k_base": _CL100K,
    "gpt2": _R50K,
    "o200k_base": _O200K,
    "o200k_harmony": _O200K,
    "p50k_base": _R50K,
    "p50k_edit": _R50K,
    "r50k_base": _R50K,
}
"""By the name of the encoding, so that none has to be downloaded for it. Source: tiktoken_ext/openai_public.py."""


def folder_of(tokenizer: str) -> Path | None:
    """The folder with the files of a tokenizer that an engine names; None if this machine has none. Downloads nothing.

    Args:
        tokenizer: The absolute path of a folder, or the id of a model on the hub.
    """
    if Path(tokenizer).is_absolute() and Path(tokenizer).is_dir():
        return Path(tokenizer)
    from huggingface_hub import try_to_load_from_cache  # takes long to import

    try:
        file = try_to_load_from_cache(tokenizer, "tokenizer.json")
    except ValueError:
        return None  # a path
    return Path(file).parent if isinstance(file, str) else None


def load_local(
    tokenizer: str,
    *,
    chat_template: str | None = None,
    template_arguments: Mapping[str, Any] | None = None,
    content_format: ContentFormat | None = None,
    cache_mib: int = 32,
) -> LocalEncoder:
    """Load a tokenizer and its chat template.

    Args:
        tokenizer: See the module's text.
        chat_template: Jinja text to use in place of the model's own (vLLM's ``--chat-template``).
        template_arguments: Default template variables (vLLM's ``--default-chat-template-kwargs``).
        content_format: What the template wants as content; None detects it.
        cache_mib: Memory of the caches of tokens in MiB; 0 for none.

    Raises:
        TokenizerUnavailable: it cannot be loaded; the message says why.
    """
    if tokenizer.startswith("builtin:"):
        source = _builtin(tokenizer.removeprefix("builtin:"), cache_mib)
    elif tokenizer.startswith("tiktoken:"):
        source = _tiktoken(tokenizer.removeprefix("tiktoken:"))
    else:
        source = _transformers(tokenizer, cache_mib)
    templates = {"default": chat_template} if chat_template is not None else source.templates
    arguments = dict(template_arguments or {})
    plain = templates.get("default")
    with_tools = templates.get("tool_use", plain)
    parts = [plain, with_tools, source.special_tokens, arguments, content_format]
    digest = json.dumps(parts, sort_keys=True, default=str)

    def prepared(text: str | None) -> ChatTemplate | None:
        if text is None:
            return None
        check_syntax(text)
        template = ChatTemplate(text, source.special_tokens, content_format, fast=True)
        # The shipped template is proved by the project's own tests.
        trusted = source.proved and chat_template is None
        if not trusted and not template.proves_equal(corpus.conversations(template.content_format)):
            template.use_reference()
        return template

    template = prepared(plain)
    return LocalEncoder(
        tokens=source.tokens,
        decode=source.decode,
        template=template,
        tools_template=template if with_tools == plain else prepared(with_tools),
        template_arguments=arguments,
        tokenizer_id=source.tokenizer_id,
        template_hash=hashlib.sha256(digest.encode()).hexdigest()[:12] if plain else "",
        by_message=lambda rules: (
            _message_tokens(source, template, cache_mib, rules) if template and cache_mib and not arguments else None
        ),
    )


def _message_tokens(
    source: "_Source", template: ChatTemplate, cache_mib: int, rules: ChatRules
) -> MessageTokens | None:
    """Encodes conversations message by message; None if the template or the tokenizer does not allow it.

    What is proved by the template's syntax tree and the list of added tokens is also tried on the corpus.
    """
    tree = template.syntax_tree()
    if not source.boundaries or not prints_messages_alone(tree):
        return None
    content_format, developer = template.format_for(rules), template.knows_developer
    as_it_is = content_format == "string" and prints_content(tree)

    def render(messages: Sequence[Any], generation_prompt: bool) -> str:
        arguments = {"add_generation_prompt": generation_prompt, "continue_final_message": False}
        made = rules.messages(messages, content_format, knows_developer=developer)
        return template.render(made, None, arguments)

    def encode(text: str) -> bytes:
        return source.tokens.encode(text, add_special_tokens=False)

    try:
        memory = cache_mib * _MESSAGE_BYTES_PER_MIB
        messages = MessageTokens(render, encode, source.boundaries, memory, as_it_is=as_it_is)
        same = all(messages.encode(each) == encode(render(each, True)) for each in corpus.plain_conversations())
    except TokenizerUnavailable:
        return None
    return messages if same else None


class _Source:
    """The result of a loader."""

    def __init__(
        self,
        tokens: TokenBackend,
        decode: Any,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        tokenizer_id: str,
        *,
        boundaries: Sequence[str] = (),
        proved: bool = False,
    ) -> None:
        self.tokens = tokens
        self.decode = decode
        self.templates = templates
        self.special_tokens = special_tokens
        self.tokenizer_id = tokenizer_id
        self.boundaries = boundaries
        self.proved = proved


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _builtin(name: str, cache_mib: int) -> _Source:
    """The shipped tokenizer, without transformers: a simulated engine starts in a tenth of the time."""
    folder = BUILTIN / name
    if not name.isidentifier() or not (folder / "tokenizer.json").is_file():
        known = ", ".join(sorted(f"builtin:{path.name}" for path in BUILTIN.iterdir() if path.is_dir()))
        raise TokenizerUnavailable(f"there is no builtin:{name}; there is {known}")
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokens = FastTokens(text, cache_mib * _SEGMENT_BYTES_PER_MIB)
    return _Source(
        tokens=tokens,
        decode=tokens.decode,
        templates={"default": (folder / "chat_template.jinja").read_text(encoding="utf-8")},
        special_tokens={
            key: value for key, value in config.items() if key.endswith("_token") and isinstance(value, str)
        },
        tokenizer_id=_digest(text.encode()),
        boundaries=boundaries(text),
        proved=True,
    )


def _transformers(name: str, cache_mib: int) -> _Source:
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    if name.startswith(("/", ".", "~")) and not Path(name).expanduser().is_dir():
        raise TokenizerUnavailable(f"{name} is not a folder")
    from transformers import AutoTokenizer

    for library in ("transformers", "huggingface_hub"):
        # Both print to stderr on their own; their messages belong into the log.
        logger = logging.getLogger(library)
        logger.handlers.clear()
        logger.propagate = True
    try:
        loaded: Any = AutoTokenizer.from_pretrained(str(Path(name).expanduser()) if name.startswith("~") else name)
    except Exception as error:
        raise TokenizerUnavailable(f"transformers cannot load {name}: {str(error).splitlines()[0]}") from error
    templates = loaded.chat_template or {}
    if isinstance(templates, str):
        templates = {"default": templates}
    special = {key: str(value) for key, value in loaded.special_tokens_map.items() if isinstance(value, str)}

    def decode(ids: list[int]) -> str:
        return str(loaded.decode(ids, skip_special_tokens=True))

    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        slow = TransformersTokens(loaded)
        return _Source(slow, decode, templates, special, _digest(repr(sorted(loaded.get_vocab().items())).encode()))
    backend.no_truncation()
    backend.no_padding()
    text = backend.to_str()
    reference = HuggingFaceTokens(backend)
    fast = _fast(reference, text, cache_mib)
    if fast is not None and decodes_equally(fast, decode, corpus.TEXTS):
        decode = fast.decode  # so that nothing refers to the reference, which takes as much memory
    return _Source(fast or reference, decode, templates, special, _digest(text.encode()), boundaries=boundaries(text))


def _fast(reference: TokenBackend, tokenizer_json: str, cache_mib: int) -> FastTokens | None:
    """fastokens; None if it does not load this tokenizer, or differs from the reference on the corpus."""
    try:
        candidate = FastTokens(tokenizer_json, cache_mib * _SEGMENT_BYTES_PER_MIB)
        return candidate if proves_equal(candidate, reference, corpus.TEXTS) else None
    except Exception:  # noqa: BLE001 - on any failure of the native library the reference is used
        return None


def _tiktoken(name: str) -> _Source:
    import tiktoken

    encoding_name, colon, file = name.partition(":")
    if Path(name).expanduser().is_file():  # its name has a colon
        encoding_name, file = "", name
    elif not colon:
        encoding_name, file = name, ""
    path = Path(file).expanduser()
    try:
        if file:
            return _ranks(path, encoding_name)
        encoding = tiktoken.get_encoding(name)
    except Exception as error:
        raise TokenizerUnavailable(f"tiktoken cannot load {name}: {str(error).splitlines()[0]}") from error
    return _Source(TiktokenTokens(encoding), encoding.decode, {}, {}, f"tiktoken-{name}")


def _ranks(path: Path, encoding_name: str) -> _Source:
    """A file of ranks, with what lies beside it: added tokens, chat template, split pattern."""
    import tiktoken

    data = path.read_bytes()
    ranks = _read_ranks(data)
    pattern = split_pattern(path, encoding_name)
    encoding = tiktoken.Encoding(
        path.stem, pat_str=pattern, mergeable_ranks=ranks, special_tokens=_added_tokens(path.parent)
    )
    # Text between matches would be left out without an error.
    if any(encoding.decode(encoding.encode_ordinary(text)) != text for text in corpus.TEXTS):
        raise TokenizerUnavailable("its split pattern leaves out a part of some texts")
    templates = {}
    template = path.parent / "chat_template.jinja"
    if template.is_file():
        templates["default"] = template.read_text(encoding="utf-8")
    # The default is left out: then a file has the same identity as when there was no other.
    identity = data if pattern == PATTERNS[DEFAULT] else data + b"\0" + pattern.encode()
    return _Source(TiktokenTokens(encoding), encoding.decode, templates, {}, _digest(identity))


def _read_ranks(data: bytes) -> dict[bytes, int]:
    """Ranks by token, from lines of a token in base64 and its rank.

    The library's own reader keeps a copy by path, in a folder for temporary files, and reads that from then on.
    """
    ranks = {}
    for number, line in enumerate(data.splitlines(), start=1):
        token, _, rank = line.strip().partition(b" ")
        if not token:
            continue
        try:
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError:
            raise TokenizerUnavailable(f"line {number} is not a token in base64 and its rank") from None
    return ranks


def _added_tokens(folder: Path) -> dict[str, int]:
    """Special tokens next to a file of ranks, in the model's ``tokenizer_config.json``."""
    config = folder / "tokenizer_config.json"
    if not config.is_file():
        return {}
    added = json.loads(config.read_text(encoding="utf-8")).get("added_tokens_decoder", {})
    return {entry["content"]: int(token) for token, entry in added.items()}


def split_pattern(ranks: Path, encoding: str) -> str:
    """The expression for a file of ranks.

    Args:
        ranks: The file.
        encoding: The encoding named in the configuration; empty for the file beside the ranks, or else the default.

    Raises:
        TokenizerUnavailable: There is no such encoding, or the file beside the ranks holds no expression.
    """
    if encoding:
        if encoding not in PATTERNS:
            raise TokenizerUnavailable(f"no split pattern is known of {encoding}; there is {', '.join(PATTERNS)}")
        return PATTERNS[encoding]
    own = ranks.parent / FILE_NAME
    if not own.is_file():
        return PATTERNS[DEFAULT]
    with own.open(encoding="utf-8") as file:
        # Blanks may be part of it; an editor's last line end is not.
        pattern = file.read(_MAX_CHARACTERS + 1).removesuffix("\n")
    if not pattern or len(pattern) > _MAX_CHARACTERS:
        raise TokenizerUnavailable(f"{own} has to hold a regular expression of at most {_MAX_CHARACTERS} characters")
    return pattern
