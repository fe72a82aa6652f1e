"""Personal data in leading messages, from the client's body to what the engine gets and the operator sees."""

import json

import pytest
from running_gateway import COMPLETIONS, eventually
from scripted_engine import STREAM_HEAD, chunk, response
from tenancy import ask_as, error, key, sections, tenant

MAIL = "jane.doe@example.com"
SHARED = f"You help with parcels. If you do not know, name {MAIL} as the contact. Be short."


def leading(text):
    return [{"role": "system", "content": text}, {"role": "user", "content": "My mail is user@example.org"}]


async def found(gateway, count):
    """Findings over all spaces, once there are so many."""
    reports = []

    async def there() -> bool:
        nonlocal reports
        spaces = (await gateway.admin.get("/admin/api/spaces")).json()["spaces"]
        reports = [report for space in spaces for report in space["personal_data"]]
        return len(reports) >= count

    await eventually(there)
    return reports


@pytest.fixture
async def setup(engine, start_gateway, tmp_path):
    """One tenant for each mode."""
    modes = [tenant(mode, personal_data=mode) for mode in ("off", "report", "mask", "block")]
    gateway = await start_gateway(engine, **sections(*modes), audit={"file": str(tmp_path / "audit.jsonl")})
    return gateway, engine


async def test_report_changes_nothing(setup):
    gateway, engine = setup
    assert (await ask_as(gateway, "report", messages=leading(SHARED))).status_code == 200
    assert json.loads(engine.requests[-1].body)["messages"] == leading(SHARED)
    (report,) = await found(gateway, 1)
    assert (report["kind"], report["path"], report["shared"]) == ("email", "messages[0].content", False)
    assert SHARED[report["start"] :][: report["length"]] == MAIL


async def test_mask_reaches_the_engine_masked_and_is_still_counted(setup):
    gateway, engine = setup
    answer = await ask_as(gateway, "mask", messages=leading(SHARED))
    assert answer.status_code == 200
    sent = engine.requests[-1].body
    assert MAIL.encode() not in sent
    assert json.loads(sent)["messages"] == leading(SHARED.replace(MAIL, "[email]"))
    assert json.loads(sent)["messages"][1]["content"].endswith("user@example.org")  # the user's own words
    assert int(answer.headers["x-gateway-prompt-tokens"]) == answer.json()["usage"]["prompt_tokens"]
    (report,) = await found(gateway, 1)
    assert report["kind"] == "email"
    again = await ask_as(gateway, "mask", messages=leading(SHARED))
    assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_blocked_data_is_reported_by_place_and_reaches_no_replica(setup):
    gateway, engine = setup
    answer = await ask_as(gateway, "block", messages=leading(SHARED))
    assert error(answer) == (400, "personal_data_in_prefix")
    assert answer.json()["error"]["param"] == "messages[0].content"
    assert MAIL not in answer.text
    assert not engine.requests
    assert (await found(gateway, 1))[0]["kind"] == "email"
    clean = await ask_as(gateway, "block", messages=leading("You help with parcels."))
    assert clean.status_code == 200


async def test_off_looks_at_nothing(setup):
    gateway, _ = setup
    await ask_as(gateway, "off", messages=leading(SHARED))
    await ask_as(gateway, "report", messages=leading(SHARED))
    assert len(await found(gateway, 1)) == 1


async def test_only_what_conversations_have_in_common_is_called_shared(setup):
    gateway, _ = setup
    mine = f"{SHARED} The user is called Jane and can be reached at +49 30 901820."
    for number in range(4):
        for text in (SHARED, mine) if number == 0 else (SHARED,):
            messages = [
                {"role": "system", "content": text},
                {"role": "user", "content": f"question {number} {len(text)}"},
            ]
            assert (await ask_as(gateway, "report", messages=messages)).status_code == 200

    async def reported() -> bool:
        return sorted((r["kind"], r["shared"]) for r in await found(gateway, 2)) == [("email", True), ("phone", False)]

    await eventually(reported)
    metrics = await gateway.metrics()
    assert metrics.value("gateway_personal_data_findings_total", kind="phone", shared="true") == 0
    assert metrics.value("gateway_personal_data_findings_total", kind="phone", shared="false", tenant="report") == 1
    assert metrics.value("gateway_personal_data_findings_total", kind="email", shared="true") >= 1


async def test_turns_of_one_conversation_do_not_make_it_shared(setup):
    gateway, _ = setup
    messages = leading(f"The customer is {MAIL}.")
    for turn in range(6):
        await ask_as(gateway, "report", messages=messages)
        messages = [
            *messages,
            {"role": "assistant", "content": f"answer {turn}"},
            {"role": "user", "content": f"{turn}?"},
        ]

    async def counted() -> bool:
        return [(r["requests"], r["shared"]) for r in await found(gateway, 1)] == [(6, False)]

    await eventually(counted)


async def test_completions_are_reported_and_left_alone(setup):
    gateway, engine = setup
    for mode in ("mask", "block"):
        answer = await gateway.http.post(
            COMPLETIONS,
            json={"model": "demo", "prompt": SHARED, "max_tokens": 1},
            headers={"authorization": f"Bearer {key(mode)}"},
        )
        assert answer.status_code == 200
        assert MAIL.encode() in engine.requests[-1].body
    assert {report["path"] for report in await found(gateway, 2)} == {"prompt"}


async def test_its_text_is_nowhere_but_in_the_request(setup, capfd, tmp_path):
    gateway, _ = setup
    for mode in ("report", "mask", "block"):
        for number in range(4):
            messages = [{"role": "system", "content": SHARED}, {"role": "user", "content": str(number)}]
            answer = await ask_as(gateway, mode, messages=messages)
            assert MAIL not in answer.text
    await found(gateway, 3)
    pages = [(await gateway.admin.get(path)).text for path in ("/metrics", "/admin/api/spaces", "/admin/api/config")]
    await gateway.stop()
    reported = "".join([*pages, *capfd.readouterr(), (tmp_path / "audit.jsonl").read_text()])
    assert "personal_data" in reported
    assert MAIL not in reported
    assert "jane" not in reported


async def hooked_gateway(start_gateway, engine, hook, *, on_failure):
    detector = {"url": f"{hook.url}/find", "kinds": ["person_name"], "timeout_seconds": 0.5, "on_failure": on_failure}
    masking = tenant("mask", personal_data="mask")
    return await start_gateway(engine, **sections(masking), personal_data={"where": "all", "detector": detector})


@pytest.mark.parametrize("answer", [b"no", b'{"findings": []}', None])
async def test_a_detector_that_fails_closed_refuses_in_the_apis_form(engine, scripted, start_gateway, answer):
    if answer is None:
        scripted.says()
    else:
        scripted.says(response(answer))
    gateway = await hooked_gateway(start_gateway, engine, scripted, on_failure="closed")
    refused = await ask_as(gateway, "mask", messages=leading(SHARED))
    assert error(refused) == (503, "personal_data_detector_failed")
    assert "personal_data.detector" in refused.json()["error"]["message"]
    assert "retry-after" in refused.headers
    assert not engine.requests


async def test_a_detector_that_hangs_and_fails_open_lets_the_request_go_on_masked(engine, scripted, start_gateway):
    scripted.says()
    gateway = await hooked_gateway(start_gateway, engine, scripted, on_failure="open")
    assert (await ask_as(gateway, "mask", messages=leading(SHARED))).status_code == 200
    assert MAIL.encode() not in engine.requests[-1].body


async def test_what_a_detector_finds_does_not_reach_the_engine(engine, scripted, start_gateway):
    scripted.says(response(b'{"findings": [[{"kind": "person_name", "start": 0, "end": 3}], []]}'))
    gateway = await hooked_gateway(start_gateway, engine, scripted, on_failure="closed")
    assert (await ask_as(gateway, "mask", messages=leading("You help with parcels."))).status_code == 200
    sent = json.loads(engine.requests[-1].body)["messages"]
    assert [message["content"] for message in sent] == ["[person_name] help with parcels.", "My mail is [email]"]
    (asked,) = scripted.received
    assert json.loads(asked.body) == {"texts": ["You help with parcels.", "My mail is user@example.org"]}


def said(text):
    return b"data: " + json.dumps({"id": "x", "choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


async def restoring(start_gateway, engine):
    numbered = {"where": "all", "placeholders": "numbered", "restore": True}
    return await start_gateway(engine, **sections(tenant("mask", personal_data="mask")), personal_data=numbered)


async def test_a_placeholder_that_is_split_over_a_stream_is_restored(scripted, start_gateway, capfd):
    gateway = await restoring(start_gateway, scripted)
    pieces = ["I wrote to [", "email", "-", "1", "] and [emai", "l-2", "], [x] [em"]
    end = b'data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    scripted.says(STREAM_HEAD, *(chunk(said(piece)) for piece in pieces), chunk(end) + b"0\r\n\r\n", pause=0.01)
    answer = await ask_as(gateway, "mask", messages=leading(SHARED), stream=True)
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    text = "".join(json.loads(each)["choices"][0]["delta"].get("content", "") for each in events)
    assert text == f"I wrote to {MAIL} and user@example.org, [x] [em"
    sent = json.loads(scripted.received[-1].body)["messages"]
    assert sent[1]["content"] == "My mail is [email-2]"
    await gateway.stop()
    assert MAIL not in "".join(capfd.readouterr())


async def test_an_answer_that_is_no_stream_is_restored_and_the_next_turn_masked_again(scripted, start_gateway):
    gateway = await restoring(start_gateway, scripted)
    reply = {"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "To [email-1]."}}]}
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    scripted.says(response(json.dumps(reply | {"usage": usage}).encode()))
    answer = await ask_as(gateway, "mask", messages=leading(SHARED))
    message = answer.json()["choices"][0]["message"]
    assert message["content"] == f"To {MAIL}."
    await ask_as(gateway, "mask", messages=[*leading(SHARED), message])
    assert json.loads(scripted.received[-1].body)["messages"][2]["content"] == "To [email-1]."
