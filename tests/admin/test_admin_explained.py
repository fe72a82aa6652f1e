"""Questions about why tokens were computed again, as the admin port passes them on."""

import pytest
from admin_port import OPERATOR, PLAIN, READER, problem

from gateway.core.api_keys import new_key
from gateway.core.errors import BadRequest, GatewayError, NotFound
from gateway.stats import Stats

PATHS = ("/admin/api/summary", "/admin/api/reasons", "/admin/api/requests", "/admin/api/requests/r1")


class Off(GatewayError):
    """Explanations are turned off."""

    status = 404


@pytest.mark.parametrize(
    ("path", "question", "arguments"),
    [
        ("summary", "summary", {}),
        (
            "summary?window=1h&model=m&tenant=acme&source=web&template=v3",
            "summary",
            "window=1h model=m tenant=acme source=web template=v3",
        ),
        ("summary?gateways=all", "summary", {"gateways": "all"}),
        ("reasons?window=7d&reason=evicted", "reasons", "window=7d reason=evicted"),
        ("reasons?by=source&template=v3", "reasons", "by=source template=v3"),
        ("reasons?model=&tenant=&source=", "reasons", {}),
        ("requests?session=s%201&limit=5", "requests", {"session": "s 1", "limit": "5"}),
        (
            "requests?model=m&tenant=acme&source=web&template=v3&reason=evicted",
            "requests",
            "model=m tenant=acme source=web template=v3 reason=evicted",
        ),
        ("requests/r1", "request", {"id": "r1"}),
        ("requests/a/b%2Fc", "request", {"id": "a/b/c"}),
        ("requests/a%3Fb%20c", "request", {"id": "a?b c"}),
        ("requests/%C3%BC", "request", {"id": "ü"}),
    ],
)
async def test_questions_are_passed_on(unguarded, path, question, arguments):
    answer = await unguarded.get(f"/admin/api/{path}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"told": ["asked"]}
    if isinstance(arguments, str):
        arguments = dict(each.split("=") for each in arguments.split())
    assert unguarded.components.questions == [(question, arguments)]


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("summary?modle=m", "modle"),
        ("summary?reason=evicted", "reason"),
        ("reasons?limit=3", "limit"),
        ("requests?window=1h", "window"),
        ("requests/r1?window=1h", "window"),
        ("requests/r1?id=r2", "id"),
        ("summary?modle=", "modle"),
    ],
)
async def test_an_unknown_parameter_is_refused(unguarded, path, param):
    problem(await unguarded.get(f"/admin/api/{path}"), 400, "unknown_parameter", param)
    assert unguarded.components.questions == []


@pytest.mark.parametrize("path", ["summary", "reasons", "requests", "report", "live", "spaces"])
@pytest.mark.parametrize("prompt", ["a/b", "support@", "@v1", "support@v1@v2", "(others)", "x" * 65])
async def test_what_cannot_be_an_application_is_refused(unguarded, path, prompt):
    said = problem(await unguarded.get(f"/admin/api/{path}?prompt={prompt}"), 400, "invalid_value", "prompt")
    assert said.startswith("`prompt` must be an application (ID or ID@VERSION, ")
    assert unguarded.components.questions == []


@pytest.mark.parametrize("prompt", ["support", "support@v1", "(other)"])
async def test_an_application_need_not_be_known(unguarded, prompt):
    assert (await unguarded.get(f"/admin/api/summary?prompt={prompt}")).status_code == 200
    ((_, arguments),) = unguarded.components.questions
    assert arguments == {"prompt": prompt}


@pytest.mark.parametrize(
    "path",
    [
        "summary?window=15m&model=m&tenant=t&source=s&template=v&prompt=p&gateways=all",
        "reasons?window=15m&model=m&tenant=t&source=s&template=v&prompt=p&reason=evicted&by=source",
        "requests?model=m&tenant=t&source=s&template=v&prompt=p&reason=evicted&session=x&limit=5",
    ],
)
async def test_what_the_port_accepts_is_in_the_journal(unguarded, path):
    journal = Stats(0.0)
    await unguarded.get(f"/admin/api/{path}")
    ((question, arguments),) = unguarded.components.questions
    assert journal.answer(question, arguments, 1.0).startswith(b"{")
    with pytest.raises(BadRequest) as refused:
        journal.answer(question, {"modle": "m"}, 1.0)
    assert set(arguments) == set(refused.value.message.rpartition("there is ")[2].rstrip(".").split(", "))


@pytest.mark.parametrize("path", PATHS)
async def test_reading_is_enough_to_ask_and_is_needed(guarded, path):
    problem(await guarded.get(path), 401, "unauthorized")
    for token in (READER, OPERATOR, PLAIN):
        assert (await guarded.get(path, token)).status_code == 200


@pytest.mark.parametrize("path", PATHS)
async def test_why_there_is_no_answer_is_shown(unguarded, path):
    unguarded.components.failure = Off("Explanations are turned off: explain.enabled.", code="explain_off")
    assert "explain.enabled" in problem(await unguarded.get(path), 404, "explain_off")
    unguarded.components.failure = NotFound("There is no request 'r1'.", code="unknown_request")
    problem(await unguarded.get(path), 404, "unknown_request")


@pytest.mark.parametrize("path", PATHS)
async def test_these_paths_are_only_for_looking(unguarded, path):
    answer = await unguarded.post(path, {})
    problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD"


async def test_a_key_in_a_question_goes_nowhere(unguarded):
    key = new_key()
    secret = key.removeprefix("pgw_")
    for path in (f"requests/{key}", f"requests?session={key}", f"summary?tenant={key}"):
        await unguarded.get(f"/admin/api/{path}")
    assert len(unguarded.components.questions) == 3
    assert secret not in str(unguarded.components.questions)
    assert secret not in (await unguarded.get(f"/admin/api/summary?{key}=1")).text


async def test_the_front_page_lists_them(unguarded):
    shown = (await unguarded.get("/")).text
    for path in ("/admin/api/summary?", "/admin/api/reasons?", "/admin/api/requests?", "/admin/api/requests/{id}"):
        assert path in shown
