"""Embeddings, scores and transcripts in a plain form: numbers that follow from the tokens, a text about the size."""

import hashlib
from collections.abc import Mapping
from typing import Any

from gateway.core.prompt import TOKEN_BYTES
from gateway.core.request import Endpoint
from gateway.simulator.call import Call, Routes
from gateway.simulator.requests import RequestReader
from gateway.tokenize.local import LocalEncoder

_FIRST, _SECOND = ("query", "queries", "text_1"), ("documents", "items", "text_2")


def pooling_routes(reader: RequestReader, encoder: LocalEncoder) -> Routes:
    """Answers what has no prefix, but for ``/tokenize``; from vLLM 0.32.0, ``vllm/entrypoints/pooling``."""

    def vectors(fields: Mapping[str, Any], texts: Any) -> tuple[list[list[float]], dict[str, Any]]:
        """One for each text, and the members that all answers have."""
        prompts = reader.prompts(Endpoint.COMPLETIONS, {"model": fields.get("model"), "prompt": texts})
        tokens = sum(map(len, prompts)) // TOKEN_BYTES
        found = [[byte / 255 for byte in hashlib.blake2b(prompt, digest_size=8).digest()] for prompt in prompts]
        return found, {"model": fields.get("model"), "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}

    async def embed(call: Call) -> None:
        found, answer = vectors(call.fields(), call.fields().get("input"))
        data = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(found)]
        await call.reply.json(answer | {"object": "list", "data": data})

    async def score(call: Call) -> None:
        fields = call.fields()
        first, second = (next((fields[name] for name in names if name in fields), "") for names in (_FIRST, _SECOND))
        texts = second if isinstance(second, list) else [second]
        firsts = first if isinstance(first, list) else [first] * len(texts)
        found, answer = vectors(fields, [f"{one}\n{other}" for one, other in zip(firsts, texts, strict=False)])
        kind = "relevance_score" if "query" in fields else "score"
        scores = [{"index": index, kind: each[0]} for index, each in enumerate(found)]
        if "query" in fields:
            scores = sorted(scores, key=lambda each: -each[kind])[: fields.get("top_n")]
        await call.reply.json(answer | {"results" if "query" in fields else "data": scores})

    async def transcribe(call: Call) -> None:
        await call.reply.json({"text": f"A form of {len(call.body)} bytes."})

    async def detokenize(call: Call) -> None:
        await call.reply.json({"prompt": encoder.decode(call.fields().get("tokens", []))})

    routes: Routes = {("POST", path): score for path in ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score")}
    routes |= {("POST", f"/v1/audio/{name}"): transcribe for name in ("transcriptions", "translations")}
    return routes | {("POST", "/v1/embeddings"): embed, ("POST", "/detokenize"): detokenize}
