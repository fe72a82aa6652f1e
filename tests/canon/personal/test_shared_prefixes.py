"""When a finding is said to stand in a shared prefix."""

import itertools
import tracemalloc

import pytest
from screening import SECRET, chat, request, screening, system

from gateway.canon.pii.counting import Conversation, SharedPrefixes
from gateway.core.request import Endpoint


async def reported(requests, *, space="s", **settings):
    """``shared`` of what each request's last finding was reported with, and the screen's reports at the end."""
    async with screening(**settings) as (screen, observer):
        shared = []
        for each in requests:
            before = len(observer.seen)
            screen.answered(each, space)
            await counted(screen, observer, before)
            shared.append(observer.seen[-1][2] if len(observer.seen) > before else None)
        return shared, screen.reports(space)


async def counted(screen, observer, before):
    import asyncio

    for _ in range(50):
        await asyncio.sleep(0)
        if len(observer.seen) > before:
            return


PROMPT = f"You work for Example Inc. In doubt write to {SECRET}. " + "Be kind. " * 200


async def test_it_takes_so_many_conversations():
    shared, reports = await reported(chat(system(PROMPT, f"question {n}")) for n in range(5))
    assert shared == [False, False, True, True, True]
    assert [(report.requests, report.shared) for report in reports] == [(5, True)]


@pytest.mark.parametrize("shared_by", [1, 2, 4])
async def test_how_many_is_a_setting(shared_by):
    shared, _ = await reported((chat(system(PROMPT, f"{n}")) for n in range(5)), shared_by=shared_by)
    assert shared == [n + 1 >= shared_by for n in range(5)]


async def test_the_same_question_asked_again_is_one_conversation():
    shared, reports = await reported(chat(system(PROMPT)) for _ in range(5))
    assert shared == [False] * 5
    assert [(report.requests, report.shared) for report in reports] == [(5, False)]


async def test_later_turns_are_the_same_conversation():
    def turn(n):
        history = [{"role": "assistant" if i % 2 else "user", "content": f"said {i}"} for i in range(1, 2 * n)]
        return chat([*system(PROMPT), *history])

    shared, _ = await reported(turn(n) for n in range(6))
    assert shared == [False] * 6


async def test_the_session_identifies_the_conversation_with_any_question():
    one = [chat(system(PROMPT, f"question {n}"), session="abc") for n in range(5)]
    assert (await reported(one))[0] == [False] * 5
    several = [chat(system(PROMPT), session=f"session {n}") for n in range(4)]
    assert (await reported(several))[0] == [False, False, True, True]


async def test_what_only_one_conversation_uses_is_not_shared():
    """Every conversation has an address of its own, all at the same place and equally long."""
    prompts = [f"Be kind. You talk to user{n}@example.com." for n in range(6)]
    shared, reports = await reported(chat(system(prompt)) for prompt in prompts)
    assert shared == [False] * 6
    assert [(report.requests, report.shared) for report in reports] == [(6, False)]


@pytest.mark.parametrize("distance", [0, 1, 100, 255, 256, 300, 5000])
async def test_a_difference_behind_the_finding_changes_nothing(distance):
    prompts = [f"Write to {SECRET} " + "x" * distance + f"{n} and so on" for n in range(4)]
    shared, _ = await reported(chat(system(prompt)) for prompt in prompts)
    assert shared == [False, False, True, True]


@pytest.mark.parametrize("distance", [1, 100, 255, 256, 300, 5000])
async def test_a_difference_before_the_finding_makes_it_unshared(distance):
    prompts = [f"{n}" + " x" * distance + f" write to {SECRET}" for n in range(4)]
    shared, _ = await reported(chat(system(prompt)) for prompt in prompts)
    assert shared == [False] * 4


async def test_two_findings_with_a_difference_between_them():
    async with screening() as (screen, observer):
        for n in range(4):
            screen.answered(chat(system(f"{SECRET} talks to user{n}@example.com now")), "s")
        while len(observer.seen) < 8:
            await counted(screen, observer, len(observer.seen))
        assert {(report.finding.start, report.shared) for report in screen.reports("s")} == {(0, True), (33, False)}


async def test_a_difference_in_role_part_or_message_before_it_counts():
    text = {"type": "text", "text": f"write to {SECRET}"}
    picture = {"type": "image_url", "image_url": {"url": "data:1"}}
    other = {"type": "image_url", "image_url": {"url": "data:2"}}
    forms = [
        [{"role": "system", "content": [text]}],
        [{"role": "developer", "content": [text]}],
        [{"role": "system", "content": [picture, text]}],
        [{"role": "system", "content": [other, text]}],
        [{"role": "system", "content": "a"}, {"role": "system", "content": [text]}],
        [{"role": "system", "content": "a", "name": "b"}, {"role": "system", "content": [text]}],
        [{"role": "system", "content": ["a", text]}],
    ]
    user = {"role": "user", "content": "hello"}
    for first, second in itertools.combinations(forms, 2):
        requests = [chat([*form, user], session=f"{n}") for n, form in enumerate((first, second))]
        assert (await reported(requests, shared_by=2))[0] == [False, False]
        requests = [chat([*first, user], session=f"{n}") for n in range(2)]
        assert (await reported(requests, shared_by=2))[0] == [False, True]


async def test_prompts_of_different_spaces_share_nothing():
    async with screening(shared_by=2) as (screen, observer):
        for n in range(6):
            screen.answered(chat(system(PROMPT, f"{n}")), f"space {n % 3}")
        while len(observer.seen) < 6:
            await counted(screen, observer, len(observer.seen))
        assert [shared for _, _, shared, _ in observer.seen] == [False, False, False, True, True, True]
        assert all(len(screen.reports(f"space {n}")) == 1 for n in range(3))
        assert screen.reports("space 3") == ()


async def test_what_becomes_shared_stays_shared_in_the_report():
    alone = chat(system(PROMPT.replace("You work", "Who work"), "a question nobody else asks"))
    shared, reports = await reported([*(chat(system(PROMPT, f"{n}")) for n in range(3)), alone])
    assert shared == [False, False, True, False]
    assert [(report.requests, report.shared) for report in reports] == [(4, True)]


def completion(prompt, **other):
    return request({"model": "m", "prompt": prompt}, endpoint=Endpoint.COMPLETIONS, **other)


async def test_completions_that_grow_are_one_conversation():
    turns = [PROMPT + "".join(f"\nUser: {n}\nAssistant: yes" for n in range(turn)) for turn in range(6)]
    assert (await reported(completion(turn) for turn in turns))[0] == [False] * 6


async def test_completions_of_several_are_several_conversations():
    prompts = [PROMPT, *(PROMPT + f"\nUser: {n}" for n in range(4))]
    # The bare prompt is how any of them may have begun; it counts as the beginning of one.
    assert (await reported(completion(prompt) for prompt in prompts))[0] == [False, False, False, True, True]


def conversation(number):
    return Conversation(number)


def test_beginnings_not_seen_for_longest_are_forgotten():
    prefixes = SharedPrefixes(shared_by=2, max_prefixes=3)
    for prefix in (1, 2, 3):
        prefixes.count(prefix, conversation(1))
    prefixes.count(1, conversation(1))
    prefixes.count(4, conversation(1))  # 2 has to go
    assert len(prefixes) == 3
    assert prefixes.count(1, conversation(2))
    assert not prefixes.count(2, conversation(2))


def test_a_shared_beginning_takes_little_memory():
    prefixes = SharedPrefixes(shared_by=3, max_prefixes=10_000)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for prefix in range(10_000):
        for number in range(3):
            prefixes.count(prefix << 50, conversation(number << 50))
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert taken / 10_000 < 300
