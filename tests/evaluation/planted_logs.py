"""Logs with known shares: words drawn with a seed, and the tokens of their parts counted with the same tokenizer."""

import json
import random
from datetime import UTC, datetime
from functools import lru_cache

from gateway.core.request import Endpoint
from gateway.tokenize.load_tokenizer import load_local

BEGAN = 1_790_000_000.0
WORDS = (
    "parcel return order invoice refund policy customer address delivery window account please note following rules "
    "answer briefly kindly never share internal always confirm identity before changing anything offer help links "
    "department opening hours payment method exchange size colour warehouse stock tracking carrier damage claim photo"
).split()


def words(seed, count):
    return " ".join(random.Random(str(seed)).choices(WORDS, k=count))


def chat(system, question, **more):
    messages = [{"role": "user", "content": question}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return {"model": "m", "messages": messages, **more}


def entry(body, at, source="web", **more):
    return {"request": body, "timestamp": at, "headers": {"x-client": source}, **more}


@lru_cache
def built_in():
    return load_local("builtin:demo")


def tokens(body):
    """Prompt tokens of a body, as an analysis without a configuration counts them."""
    encoder = built_in()
    endpoint = Endpoint.CHAT if "messages" in body else Endpoint.COMPLETIONS
    return sum(len(part) // 4 for part in encoder.encode(endpoint, body))


def support_log(requests=60):
    """Sixty percent of the requests share a long system prompt, the others nothing."""
    system = "You are the support assistant. " + words("support", 600)
    for number in range(requests):
        at = BEGAN + 10.0 * number
        if number % 5 < 3:
            yield entry(chat(system, words(("q", number), 60)), at, "support-chat")
        else:
            yield entry(chat("", words(("alone", number), 300)), at, "batch-jobs")


def timed_log(requests=40):
    """Every request has the time in front of a system prompt that repeats."""
    rules = words("timed", 500)
    for number in range(requests):
        at = BEGAN + 61.0 * number
        now = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
        yield entry(chat(f"Current time: {now}\n{rules}", words(("q", number), 60)), at, "clock-bot")


def unique_log(requests=40):
    """Nothing repeats."""
    for number in range(requests):
        yield entry(chat("", words(("unique", number), 300)), BEGAN + number, "scripts")


def lines(entries):
    return "".join(json.dumps(each) + "\n" for each in entries)
