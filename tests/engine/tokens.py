"""Check: the gateway's token ids against the engine's own, for every request and several chat templates."""

from collections import Counter
from dataclasses import dataclass

import httpx

from gateway.core.errors import TokenizerUnavailable
from gateway.core.request import Endpoint
from gateway.tokenize.load_tokenizer import load_local
from gateway.tokenize.local import LocalEncoder
from tests.engine.cases import CHAT, Case
from tests.engine.places import DEMO_TEMPLATE, GOLDEN
from tests.engine.replica import MODEL

TEMPLATES = {"demo": DEMO_TEMPLATE, "parts": GOLDEN / "parts.jinja", "agent": GOLDEN / "agent.jinja"}
"""Chat templates besides the model's own, which ignores tools and everything else that is hard."""


@dataclass(frozen=True)
class Comparison:
    """One request under one template.

    Attributes:
        case: The request's name.
        template: The template's name.
        engine: The engine's ids, prompt by prompt; None if it refused the request.
        gateway: The gateway's; None if it would ask the engine.
        note: Why one of them has none.
    """

    case: str
    template: str
    engine: list[list[int]] | None
    gateway: list[list[int]] | None
    note: str

    @property
    def verdict(self) -> str:
        """``equal``, ``different``, ``asked`` (the gateway leaves this one to the engine), ``refused`` (the engine)."""
        if self.engine is None:
            return "refused"
        if self.gateway is None:
            return "asked"
        return "equal" if self.engine == self.gateway else "different"


def render(client: httpx.Client, case: Case, chat_template: str | None) -> list[list[int]] | str:
    """The engine's token ids, prompt by prompt, or its error message."""
    body = {"model": MODEL, **case.body}
    if chat_template is not None and case.endpoint == CHAT:
        body["chat_template"] = chat_template
    answer = client.post(f"{case.endpoint}/render", json=body)
    if answer.status_code != 200:
        return f"{answer.status_code}: {answer.text[:300]}"
    found = answer.json()
    return [item["token_ids"] for item in (found if isinstance(found, list) else [found])]


def encode(encoder: LocalEncoder, case: Case) -> list[list[int]] | str:
    """The gateway's token ids, prompt by prompt, or why it has none."""
    try:
        parts = encoder.encode(Endpoint(case.endpoint), {"model": MODEL, **case.body})
    except TokenizerUnavailable as reason:
        return str(reason)
    return [list(memoryview(part).cast("I")) for part in parts]


def compare(url: str, tokenizer: str, cases: list[Case], own_template: str | None = None) -> list[Comparison]:
    """Every case under every template.

    Args:
        url: A render server that takes templates from requests.
        tokenizer: The same tokenizer, for the gateway.
        cases: The requests.
        own_template: Name for the tokenizer's own template, to be compared as well.
    """
    texts: dict[str, str | None] = {own_template: None} if own_template else {}
    texts |= {name: path.read_text(encoding="utf-8") for name, path in TEMPLATES.items()}
    results = []
    with httpx.Client(base_url=url, timeout=120.0) as client:
        for name, text in texts.items():
            encoder = load_local(tokenizer, chat_template=text)
            for case in cases:
                if case.endpoint != CHAT and name != next(iter(texts)):
                    continue  # completions know no template
                engine, gateway = render(client, case, text), encode(encoder, case)
                note = " / ".join(answer for answer in (engine, gateway) if isinstance(answer, str))
                results.append(
                    Comparison(
                        case.name,
                        name,
                        None if isinstance(engine, str) else engine,
                        None if isinstance(gateway, str) else gateway,
                        note,
                    )
                )
    return results


def verdicts(comparisons: list[Comparison]) -> Counter[str]:
    """How many of each verdict."""
    return Counter(comparison.verdict for comparison in comparisons)
