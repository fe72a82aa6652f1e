"""Lists and objects: as many as are allowed, and more."""

from itertools import count

from benchmarks.hostile.attacks.attack import FULL, body, chat, joined, message, repeated, sending

_LETTERS = b"QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo0NTY3ODkw"


def _image(size: int) -> bytes:
    data = (_LETTERS * (size // len(_LETTERS) + 1))[:size]
    return b'{"type":"image_url","image_url":{"url":"data:image/png;base64,%b"}}' % data


def _parts(*parts: bytes) -> bytes:
    return chat(messages=b'{"role":"user","content":[%b]}' % b",".join((*parts, b'{"type":"text","text":"Hi"}')))


def _tool(parameters: bytes, name: bytes = b"f") -> bytes:
    return b'{"type":"function","function":{"name":"%b","parameters":%b}}' % (name, parameters)


def _tools(*tools: bytes) -> bytes:
    return chat(b'"tools":[%b]' % b",".join(tools))


def _levels(depth: int, inside: bytes) -> bytes:
    return b'{"type":"object","properties":{"a":' * depth + inside + b"}}" * depth


ATTACKS = (
    body(
        "lists",
        "98,000 empty lists and objects in an unknown member",
        lambda: chat(b'"x":[%b]' % b",".join([b"[],{}"] * 49_000)),
    ),
    body("lists-too-many", "5 million empty lists", lambda: chat(b'"x":[%b]' % repeated(b"[]"))),
    body("messages", "a million tiny messages", lambda: chat(messages=repeated(b'{"role":"a"}'))),
    body("messages-most", "98,000 messages", lambda: chat(messages=repeated(message(b"Hi"), 98_000 * 32))),
    body(
        "messages-system",
        "98,000 system messages",
        lambda: chat(messages=b",".join([message(b"Hi", b"system")] * 98_000)),
    ),
    body(
        "messages-in-turn",
        "49,000 turns",
        lambda: chat(messages=b",".join([message(b"Hi"), message(b"Ho", b"assistant")] * 49_000)),
    ),
    body(
        "messages-long",
        "16 MiB in 98,000 messages",
        lambda: chat(
            messages=b",".join(
                message(b"%d some words and others of a message, so that it is longer. " % n * 2) for n in range(98_000)
            )
        ),
    ),
    body("parts", "98,000 parts of text in a message", lambda: _parts(*[b'{"type":"text","text":"a"}'] * 98_000)),
    body(
        "parts-strings",
        "4 million strings as parts",
        lambda: chat(messages=b'{"role":"user","content":[%b]}' % repeated(b'"a"')),
    ),
    body("image", "an image of 15 MB", lambda: _parts(_image(15_000_000))),
    body("images", "45,000 images", lambda: _parts(*[_image(200)] * 45_000)),
    sending(
        "images-other",
        "images of 1 MB, each with other data",
        lambda _: [_parts(_image(1_000_000 + n)) for n in range(16)],
    ),
    body("tools", "33,000 tools", lambda: _tools(*(_tool(b"{}", b"f%d" % n) for n in range(33_000)))),
    body(
        "tool-keys",
        "a tool whose schema has 900,000 keys",
        lambda: _tools(_tool(b"{%b}" % joined(b'"%x":1' % n for n in range(900_000)))),
    ),
    body(
        "tool-properties",
        "a tool with 98,000 properties",
        lambda: _tools(
            _tool(
                b'{"type":"object","properties":{%b}}'
                % b",".join(b'"p%d":{"type":"string"}' % n for n in range(98_000))
            )
        ),
    ),
    body("tool-levels", "900 tools with schemas 56 levels deep", lambda: _tools(*[_tool(_levels(27, b"{}"))] * 900)),
    body(
        "tool-enum",
        "a tool with an enumeration of 1.8 million values",
        lambda: _tools(_tool(b'{"enum":[%b]}' % joined(b'"%x"' % n for n in count()))),
    ),
    body(
        "tool-text",
        "a tool with a description of 16 MiB",
        lambda: _tools(_tool(b'{"description":"%b"}' % repeated(b"some words ", separator=b""))),
    ),
    body(
        "schema",
        "a response format with 900,000 keys",
        lambda: chat(
            b'"response_format":{"type":"json_schema","json_schema":{%b}}'
            % joined(b'"%x":1' % n for n in range(900_000))
        ),
    ),
    body("stop", "4 million texts in `stop`", lambda: chat(b'"stop":[%b]' % repeated(b'"a"'))),
    body(
        "logit-bias",
        "a million entries of `logit_bias`",
        lambda: chat(b'"logit_bias":{%b}' % joined(b'"%d":-1' % n for n in count())),
    ),
    body(
        "template-arguments",
        "900,000 `chat_template_kwargs`",
        lambda: chat(b'"chat_template_kwargs":{%b}' % joined(b'"k%x":1' % n for n in range(900_000))),
    ),
    body(
        "documents",
        "49,000 `documents`",
        lambda: chat(b'"documents":[%b]' % repeated(b'{"title":"t","text":"some text"}', 33 * 49_000)),
    ),
    body("model-name", "a model name of 16 MiB", lambda: b'{"model":"%b"}' % (b"m" * (FULL - 20))),
    body(
        "user-name", "a `user` of 16 MiB", lambda: chat(b'"user":"%b","prompt_cache_key":"x"' % (b"u" * (FULL - 200)))
    ),
    body(
        "roles",
        "98,000 messages with roles of their own",
        lambda: chat(messages=b",".join(message(b"Hi", b"r%d" % n) for n in range(98_000))),
    ),
    body("role-name", "a role of 16 MiB", lambda: chat(messages=message(b"Hi", b"r" * (FULL - 200)))),
)
