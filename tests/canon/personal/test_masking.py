"""Findings replaced in a request."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from screening import SECRET, chat, parsed, request, screening, system

MASKED = "Write to [email]."
TEXT = f"Write to {SECRET}."


async def masked(original, **settings):
    async with screening(**settings) as (screen, _):
        result = await screen.inspect(original)
        assert parsed(result.body) == result.fields
        return result


async def test_body_and_fields_are_masked():
    body = (
        f'{{ "model":"m", "messages" : [ {{"content": "{TEXT}","role":"system"}}, {{"role":"user","content":"é"}}]}} '
    )
    original = request(None, body=body.encode(), mode="mask")
    result = await masked(original)
    assert result.body == body.replace(TEXT, MASKED).encode()
    assert result.fields["messages"][0] == {"content": MASKED, "role": "system"}
    assert TEXT in original.body.decode()
    assert original.fields["messages"][0]["content"] == TEXT


async def test_each_finding_becomes_its_kind():
    text = "anna@example.com 4111111111111111 +49 170 1234567 10.0.0.1 DE89370400440532013000 536-90-4399 EMP-1"
    result = await masked(chat(system(text), mode="mask"), patterns=({"kind": "employee-id", "regex": "EMP-[0-9]"},))
    expected = "[email] [card] [phone] [ipv4] [iban] [national_id] [employee-id]"
    assert result.fields["messages"][0]["content"] == expected


async def test_every_form_of_content():
    parts = [
        {"type": "image_url", "image_url": {"url": "data:,anna@example.com"}},
        {"type": "text", "text": TEXT},
        TEXT,
        {"type": "text", "text": "nothing"},
        {"type": "text", "text": None},
        {"type": "text"},
        None,
        7,
    ]
    messages = [
        {"role": "system", "content": None},
        {"role": "system"},
        {"role": "system", "content": []},
        {"role": "developer", "content": parts},
        {"role": "assistant", "content": TEXT},
        {"role": "user", "content": "hello"},
    ]
    result = await masked(chat(messages, mode="mask"))
    assert result.fields["messages"][3]["content"] == [
        parts[0],
        {"type": "text", "text": MASKED},
        MASKED,
        *parts[3:],
    ]
    assert result.fields["messages"][4]["content"] == MASKED


async def test_the_users_own_words_stay():
    messages = [
        *system(TEXT, TEXT),
        {"role": "assistant", "content": TEXT},
        {"role": "system", "content": TEXT},
    ]
    result = await masked(chat(messages, mode="mask", tools=[{"type": "function", "function": {"name": TEXT}}]))
    assert [message["content"] for message in result.fields["messages"]] == [MASKED, TEXT, TEXT, TEXT]
    assert result.fields["tools"][0]["function"]["name"] == TEXT


async def test_without_a_user_message_everything_is_leading():
    messages = [{"role": "system", "content": TEXT}, {"role": "assistant", "content": TEXT}]
    result = await masked(chat(messages, mode="mask"))
    assert [message["content"] for message in result.fields["messages"]] == [MASKED, MASKED]


@pytest.mark.parametrize(
    "body",
    [
        # twice the same member, the last one counts: at the top, in a message, in a part
        '{"messages":[{"role":"system","content":"a@example.com"}],"messages":[{"role":"system","content":"SECRET"}]}',
        '{"messages":[{"content":"SECRET","role":"system","content":"SECRET SECRET"}]}',
        '{"messages":[{"role":"user","content":"SECRET","role":"system"}]}',
        '{"messages":[{"role":"system","content":[{"text":1,"text":"SECRET"},{"text":"SECRET","text":"none"}]}]}',
        # what Python's parser takes and a strict one does not
        '{"x":NaN,"messages":[{"role":"system","x":-Infinity,"content":"SECRET"}],"seed":1e999,"y":123456789012345678901}',
        # escapes
        r'{"messages":[{"role":"system","content":"\u0041\ud83d\ude00\"\\\/ SECRET \n\u00e9 anna\u0040example.com"}]}',
        r'{"\u006dessages":[{"r\u006fle":"syst\u0065m","content":"SECRET"}]}',
        # brackets in strings, empty arrays and objects, odd spaces
        '{"a":[],"b":{},"c":"]}\\"","messages":\r\n[\t{"role":"system","content":[ ] },'
        '{"role":"system","content":"SECRET"}]}',
    ],
)
async def test_odd_bodies(body):
    original = request(None, body=body.replace("SECRET", SECRET).encode(), mode="mask")
    result = await masked(original)
    text = json.dumps(parsed(result.body)["messages"])
    assert "[email]" in text
    assert "example.com" not in text


async def test_bytes_around_the_text_stay():
    body = (
        rb'{"n":1.0E+2,"u":"\u00e9", "messages":[ {"role":"system" ,"content":"SECRET"} ] , "big":98765432109876543210}'
    )
    result = await masked(request(None, body=body.replace(b"SECRET", SECRET.encode()), mode="mask"))
    assert result.body == body.replace(b"SECRET", b"[email]")


async def test_nothing_found_is_the_same_request():
    original = chat(system("Be kind."), mode="mask")
    assert await masked(original) is original


async def test_what_is_masked_is_not_found_again():
    once = await masked(chat(system(TEXT), mode="mask"))
    assert await masked(once) is once


async def test_a_large_body_is_masked_as_well():
    messages = [{"role": "system", "content": f"{TEXT} {'x' * 20_000}"} for _ in range(20)]
    result = await masked(chat([*messages, {"role": "user", "content": TEXT}], mode="mask"))
    contents = [message["content"] for message in result.fields["messages"]]
    assert all(content.startswith(MASKED + " x") for content in contents[:-1])
    assert contents[-1] == TEXT


async def test_thousands_of_findings_in_thousands_of_messages():
    messages = [{"role": "system", "content": f"{n} {TEXT}"} for n in range(4000)]
    result = await masked(chat(messages, mode="mask"))
    assert SECRET.encode() not in result.body
    assert result.fields["messages"][3999]["content"] == f"3999 {MASKED}"


WORDS = st.sampled_from([SECRET, "4111111111111111", "10.1.2.3", "x", "é", "😀", '"', "\\", "\n", "\u2028", "/"])
TEXTS = st.lists(WORDS, max_size=6).map(" ".join)
CONTENTS = TEXTS | st.lists(TEXTS.map(lambda text: {"type": "text", "text": text}) | TEXTS, max_size=3)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "assistant", "user"]), "content": CONTENTS}),
    min_size=1,
    max_size=4,
)


@given(messages=MESSAGES, escaped=st.booleans(), indent=st.sampled_from([None, 1]))
def test_masking_of_any_messages(messages, escaped, indent):
    import asyncio

    body = json.dumps({"messages": messages, "tail": [1.5, {}]}, ensure_ascii=escaped, indent=indent).encode()
    result = asyncio.run(masked(request(None, body=body, mode="mask")))

    def expected(text):
        for secret, kind in ((SECRET, "email"), ("4111111111111111", "card"), ("10.1.2.3", "ipv4")):
            text = text.replace(secret, f"[{kind}]")
        return text

    def part(value):
        return {**value, "text": expected(value["text"])} if isinstance(value, dict) else expected(value)

    leading = True
    for before, after in zip(messages, json.loads(result.body)["messages"], strict=True):
        leading = leading and before["role"] != "user"
        content = before["content"]
        if leading:
            content = [part(value) for value in content] if isinstance(content, list) else expected(content)
        assert after == {**before, "content": content}
