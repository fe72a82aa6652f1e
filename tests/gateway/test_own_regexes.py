"""Regular expressions of the operator's, in a gateway that serves."""

import asyncio

import httpx
import orjson
import pytest
from running_gateway import CHAT
from serving import COMMAND

PATIENT = r"^(?:\w+[ .]?)+#$"
"""Tries two to the power of the letters' number of ways, where a search goes back and forth."""

SECTIONS = {
    "pattern": {"canon": {"rules": {"pattern": "apply"}, "patterns": [{"name": "p", "regex": PATIENT}]}},
    "slot": {
        "canon": {"rules": {"dynamic-suffix": "apply"}, "dynamic_suffix": {"slots": [{"name": "p", "regex": PATIENT}]}}
    },
    "personal": {"personal_data": {"mode": "mask", "patterns": [{"kind": "p", "regex": PATIENT}]}},
}


@pytest.mark.parametrize("section", SECTIONS)
async def test_no_prompt_makes_a_pattern_take_for_ever(engine, serve, section):
    serving = await serve(engine.url, **SECTIONS[section])
    messages = [{"role": "system", "content": "a" * 40}, {"role": "user", "content": "Hello."}]
    async with httpx.AsyncClient(base_url=serving.url, timeout=30) as client:
        answer = await client.post(CHAT, json={"model": "demo", "messages": messages, "max_tokens": 1})
    assert answer.status_code == 200


async def test_what_a_pattern_finds_is_masked_in_all_scripts(engine, serve):
    patterns = [{"kind": "customer", "regex": r"Kunde: \w+"}]
    serving = await serve(engine.url, personal_data={"mode": "mask", "patterns": patterns})
    messages = [{"role": "system", "content": "😀 Kunde: Müller. Ж"}, {"role": "user", "content": "Hello."}]
    async with httpx.AsyncClient(base_url=serving.url, timeout=30) as client:
        await client.post(CHAT, json={"model": "demo", "messages": messages, "max_tokens": 1})
    (request,) = [request for request in engine.requests if request.path == CHAT]
    assert orjson.loads(request.body)["messages"][0]["content"] == "😀 [customer]. Ж"


async def test_check_names_the_line_and_the_reason(config):
    file = config(canon={"patterns": [{"name": "p", "regex": r"(?<=x)\d+"}]})
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "check", str(file), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    reported, _ = await process.communicate()
    assert process.returncode == 2
    (line,) = [line for line in reported.decode().splitlines() if "canon.patterns[0].regex" in line]
    number = 1 + next(n for n, text in enumerate(file.read_text().splitlines()) if "regex" in text)
    assert line.startswith(f"{file}:{number}: canon.patterns[0].regex: ")
    assert "(?<= is not offered: no look-around" in line
