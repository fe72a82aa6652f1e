"""Questions about the replicas and what is warm there, as the admin port passes them on."""

import pytest
from admin_port import OPERATOR, READER, problem

PREFIXES = "/admin/api/prefixes"


@pytest.mark.parametrize(
    ("query", "model", "limit"),
    [
        ("", "", 20),
        ("?model=&limit=", "", 20),
        ("?model=m&limit=1", "m", 1),
        ("?limit=100", "", 100),
    ],
)
async def test_prefixes_are_asked_for_by_model_and_number(unguarded, query, model, limit):
    answer = await unguarded.get(PREFIXES + query)
    assert answer.status_code == 200
    assert answer.json() == {"prefixes": [{"model": model}] * limit}


@pytest.mark.parametrize("limit", ["0", "101", "-1", "1.5", "ten", "0x10", "٣", "9999"])
async def test_a_limit_that_is_none_is_refused(unguarded, limit):
    assert "1 to 100" in problem(await unguarded.get(f"{PREFIXES}?limit={limit}"), 400, "invalid_value", "limit")


@pytest.mark.parametrize("name", ["modle", "tenant", "window"])
async def test_an_unknown_filter_is_refused(unguarded, name):
    problem(await unguarded.get(f"{PREFIXES}?{name}=m"), 400, "unknown_parameter", name)


@pytest.mark.parametrize("path", [PREFIXES, "/admin/api/replicas"])
async def test_reading_is_enough_and_is_needed(guarded, path):
    problem(await guarded.get(path), 401, "unauthorized")
    for token in (READER, OPERATOR):
        assert (await guarded.get(path, token)).status_code == 200


async def test_the_front_page_lists_it(unguarded):
    assert f"{PREFIXES}?model=&limit=" in (await unguarded.get("/")).text
