"""Requests as people write them, with a token for each word."""

import json
import struct
import zlib
from array import array

from gateway.core.explanation import ReplyChoice, SpaceKey
from gateway.explain.bodies import Bodies
from gateway.explain.prompt_text import Message, PromptText, Tool
from gateway.explain.reference import KeptRequest
from gateway.request_record import opening_and_turn
from gateway.tokenize.block_hashes import ChainHasher

NOW = 1_795_000_000.0

SUPPORT = """You are the support assistant of Nordwind Travel.
Answer in the customer's language, in at most five sentences.
Look up bookings with the booking tool before you say anything about them.
Never promise a refund; say that a colleague decides on it within two days.
If somebody is stranded, give the emergency number first."""

CODE = """You review pull requests of a payment service written in Go.
Point out races, lost errors and missing tests, one line each, most severe first.
Quote the file and the line. Do not comment on style, the linter does that.
When there is nothing to say, answer with the single word LGTM."""


def system(text):
    return Message("system", text)


def user(text):
    return Message("user", text)


def assistant(text):
    return Message("assistant", text)


def tool(name):
    return Tool(name, f'{{"function":{{"name":"{name}"}}}}', f'{{"function":{{"name":"{name}"}}}}')


def tokens(text):
    words = [word for each in text.tools for word in ("tool", *each.raw.split())]
    for message in text.messages:
        words += [f"<{message.role}>", *message.text.split(), "<end>"]
    return struct.pack(f"<{len(words)}I", *(zlib.crc32(word.encode("utf-8", "replace")) for word in words))


BODIES = Bodies()


def request(request_id, *messages, tools=(), reply=None, session="", tenant="acme", model="m", source="web", at=NOW):
    text = PromptText(messages, tuple(tools), {})
    replies = () if reply is None else (ReplyChoice(reply, None),)
    fields = fields_of(text)
    return KeptRequest(
        request_id,
        at,
        tenant,
        model,
        source,
        session,
        SpaceKey(model),
        "/v1/completions" if "prompt" in fields else "/v1/chat/completions",
        json.dumps(fields).encode(),
        tokens(text),
        BODIES,
        (chain(tokens(text)),),
        16,
        *opening_and_turn(fields),
        replies=replies,
    )


def chain(ids):
    """Block hashes of token ids."""
    return array("Q", ChainHasher().chain(1, ids, 16).hashes)


def fields_of(text):
    """The body that such a prompt is read from."""
    if any(message.role == "prompt" for message in text.messages):
        prompts = [message.text for message in text.messages]
        return {"prompt": prompts[0] if len(prompts) == 1 else prompts}
    messages = []
    for message in text.messages:
        fields = {"role": message.role, "content": message.text}
        if message.form == "parts":
            fields["content"] = [{"type": "text", "text": message.text}]
        if message.calls:
            fields["tool_calls"] = [
                {"function": {"name": call.name, "arguments": call.arguments}} for call in message.calls
            ]
        messages.append(fields)
    return {"messages": messages} | ({"tools": [json.loads(each.raw) for each in text.tools]} if text.tools else {})
