"""A detector of the operator's own: what it is asked, what is taken of its answers, and what happens when it fails."""

import asyncio
import contextlib
import json
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import structlog
from patience import HANG_SECONDS
from pydantic import ValidationError
from screening import SECRET, chat, screening, system
from test_screen import idle

from gateway.canon.pii import detector_pause
from gateway.config.personal_data_settings import DetectorSettings
from gateway.core.errors import DetectorUnavailable

TEXT = f"Anna writes from {SECRET}, Anna says."
FOUND = {"kind": "person_name", "start": 0, "end": 4}


class Hook:
    """An HTTP server that answers with what ``answer`` returns for a request's texts; None: nothing, ever."""

    def __init__(self, answer, status=200):
        self.answer = answer
        self.status = status
        self.asked = []
        self.heads = []
        self.at_once = self.most_at_once = 0
        self.released = asyncio.Event()
        self.writers = []

    async def serve(self, reader, writer):
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length:")
                )
                texts = json.loads(await reader.readexactly(length))["texts"]
                self.heads.append(head)
                self.asked.append(texts)
                self.at_once += 1
                self.most_at_once = max(self.at_once, self.most_at_once)
                answer = self.answer(texts)
                if answer is None:
                    await self.released.wait()
                    break
                await asyncio.sleep(0.01)
                self.at_once -= 1
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (self.status, len(body), body))
        writer.close()


@contextlib.asynccontextmanager
async def hooked(answer, *, status=200, timeout=20.0, kinds=("person_name",), path="/find", **settings):
    """A screen with a detector."""
    hook = Hook(answer, status)
    server = await asyncio.start_server(hook.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}"
    names = ("on_failure", "max_concurrent", "api_key")
    detector = {"url": url, "kinds": kinds, "timeout_seconds": timeout}
    detector |= {name: settings.pop(name) for name in names if name in settings}
    async with screening(detector=detector, **settings) as (screen, observer):
        try:
            yield screen, hook, observer
        finally:
            hook.released.set()
            for writer in hook.writers:
                writer.transport.abort()
            server.close()
            await server.wait_closed()


def names(texts):
    """Finds "Anna" at the beginning."""
    return {"findings": [[FOUND] if text.startswith("Anna") else [] for text in texts]}


async def test_its_findings_are_masked_beside_those_of_the_patterns():
    async with hooked(names, api_key="opensesame") as (screen, hook, _):
        result = await screen.inspect(chat(system(TEXT), mode="mask"))
    assert result.fields["messages"][0]["content"] == "[person_name] writes from [email], Anna says."
    assert hook.asked == [[TEXT]]
    assert hook.heads[0].startswith("POST /find HTTP/1.1")
    assert "authorization: Bearer opensesame" in hook.heads[0]


async def test_texts_that_it_has_seen_are_not_sent_again():
    async with hooked(names, where="all") as (screen, hook, _):
        for question in ("one", "two"):
            await screen.inspect(chat(system(TEXT, question), mode="mask"))
    assert hook.asked == [[TEXT, "one"], ["two"]]


async def test_offsets_are_characters_and_where_findings_overlap_the_pattern_counts():
    text = f"😀é {SECRET} 漢字"
    findings = [
        {"kind": "word", "start": len(text) - 2, "end": len(text), "score": 0.9},
        {"kind": "word", "start": 3, "end": 7},
        {"kind": "word", "start": 0, "end": 2},
        {"kind": "word", "start": 0, "end": 1},
    ]
    async with hooked(lambda texts: {"findings": [findings]}, kinds=("word",)) as (screen, _, _):
        result = await screen.inspect(chat(system(text), mode="mask"))
    assert result.fields["messages"][0]["content"] == "[word] [email] [word]"


async def test_half_a_character_is_sent_as_one_character():
    async with hooked(lambda texts: {"findings": [[{"kind": "word", "start": 1, "end": 2}]]}, kinds=("word",)) as (
        screen,
        hook,
        _,
    ):
        result = await screen.inspect(chat(system("\ud800b"), mode="mask"))
    assert hook.asked == [["?b"]]
    assert result.fields["messages"][0]["content"] == "\ud800[word]"


async def test_block_refuses_what_it_finds():
    async with hooked(names) as (screen, _, _):
        with pytest.raises(Exception, match="kind `person_name`"):
            await screen.inspect(chat(system("Anna is here."), mode="block"))


NONSENSE = [
    (b"", "something else"),
    (b"no", "something else"),
    ([], "something else"),
    ({}, "something else"),
    ({"findings": None}, "something else"),
    ({"findings": [[{"kind": "person_name", "start": "0", "end": 4}]]}, "something else"),
    ({"findings": [[{"kind": "person_name", "start": 0.5, "end": 4}]]}, "something else"),
    (b"[" * 100_000, "something else"),
    ({"findings": []}, "0 lists of findings for 1 texts"),
    ({"findings": [[], []]}, "2 lists of findings for 1 texts"),
    ({"findings": [[{"kind": "person_name", "start": -1, "end": 4}]]}, "not within its text"),
    ({"findings": [[{"kind": "person_name", "start": 4, "end": 4}]]}, "not within its text"),
    ({"findings": [[{"kind": "person_name", "start": 0, "end": 1000}]]}, "not within its text"),
    ({"findings": [[{"kind": "person_name", "start": 0, "end": 10**30}]]}, "not within its text"),
    (
        {"findings": [[{"kind": SECRET, "start": 0, "end": 4}]]},
        "a kind that personal_data.detector.kinds does not name",
    ),
    ({"findings": [[FOUND] * 10_001]}, "more than 10000 findings"),
    (b" " * (1024 * 1024 + 1), "1024 KiB"),
]


@pytest.mark.parametrize(("answer", "problem"), NONSENSE)
@pytest.mark.parametrize("mode", ["mask", "block"])
async def test_nonsense_refuses_the_request_where_it_fails_closed(answer, problem, mode):
    async with hooked(lambda texts: answer) as (screen, _, observer):
        with structlog.testing.capture_logs() as logs, pytest.raises(DetectorUnavailable) as refused:
            await screen.inspect(chat(system(TEXT), mode=mode))
    assert observer.refused == [True]
    error = refused.value
    assert (error.status, error.code, error.type) == (503, "personal_data_detector_failed", "service_unavailable")
    assert problem in error.message
    assert "personal_data.detector" in error.message
    (log,) = logs
    assert (log["event"], log["log_level"]) == ("personal_data_detector_failed", "warning")
    assert SECRET not in error.message + repr(logs)


@pytest.mark.parametrize("answer", [b"no", {"findings": []}, None])
async def test_where_it_fails_open_the_patterns_count(answer):
    async with hooked(lambda texts: answer, on_failure="open", timeout=0.3) as (screen, _, observer):
        with structlog.testing.capture_logs() as logs:
            result = await screen.inspect(chat(system(TEXT), mode="mask"))
    assert observer.refused == [False]
    assert result.fields["messages"][0]["content"] == "Anna writes from [email], Anna says."
    assert [log["event"] for log in logs] == ["personal_data_detector_failed"]


async def test_a_failure_is_not_remembered():
    async with hooked(lambda texts: b"no", on_failure="open") as (screen, hook, _):
        await screen.inspect(chat(system(TEXT), mode="mask"))
        hook.answer = names
        result = await screen.inspect(chat(system(TEXT), mode="mask"))
    assert result.fields["messages"][0]["content"].startswith("[person_name]")


@pytest.mark.parametrize("status", [201, 301, 403, 429, 500])
async def test_a_refusal_is_a_failure(status):
    async with hooked(names, status=status) as (screen, _, _):
        with pytest.raises(DetectorUnavailable, match=f"answered with status {status}"):
            await screen.inspect(chat(system(TEXT), mode="mask"))


async def test_an_answer_that_is_too_large_is_reported_in_one_sentence():
    async with hooked(lambda texts: b" " * (1024 * 1024 + 1)) as (screen, _, _):
        with pytest.raises(DetectorUnavailable) as refused:
            await screen.inspect(chat(system(TEXT), mode="mask"))
    said = refused.value.message
    assert said.startswith("The detector of personal data (personal_data.detector) answered more than 1024 KiB, so ")


async def test_one_that_is_not_there_is_a_failure():
    async with screening(detector={"url": "http://127.0.0.1:9", "kinds": ("x",), "timeout_seconds": 20.0}) as (
        screen,
        _,
    ):
        with structlog.testing.capture_logs() as logs, pytest.raises(DetectorUnavailable, match="no answer") as refused:
            await screen.inspect(chat(system(TEXT), mode="mask"))
    assert "refused" in logs[0]["detail"]  # for the operator only
    assert "127" not in refused.value.message
    assert "Errno" not in refused.value.message


async def test_one_that_hangs_costs_its_time_limit_and_stops_nothing_else():
    async with hooked(lambda texts: None, timeout=0.3) as (screen, _, _):
        waiting = asyncio.ensure_future(screen.inspect(chat(system(TEXT), mode="mask")))
        while not waiting.done():
            original = chat(system("Nothing here."), mode="off")
            assert await screen.inspect(original) is original
            await asyncio.sleep(0.01)
        with pytest.raises(DetectorUnavailable, match=r"within 0\.3 seconds"):
            await waiting


async def test_calls_at_once_are_bounded_and_the_wait_counts():
    async with hooked(names, max_concurrent=2) as (screen, hook, _):
        requests = [chat(system(f"Anna {number}"), mode="mask") for number in range(8)]
        await asyncio.gather(*map(screen.inspect, requests))
        assert hook.most_at_once == 2
    async with hooked(lambda texts: None, max_concurrent=1, timeout=0.3) as (screen, hook, _):
        requests = [chat(system(f"Anna {number}"), mode="mask") for number in range(3)]
        results = await asyncio.gather(*map(screen.inspect, requests), return_exceptions=True)
        assert [type(result) for result in results] == [DetectorUnavailable] * 3


@pytest.fixture
def pause(monkeypatch):
    """Sets how long a detector is not asked after failures."""
    return lambda seconds: monkeypatch.setattr(detector_pause, "PAUSE_SECONDS", seconds)


@pytest.mark.parametrize("on_failure", ["open", "closed"])
async def test_one_that_hangs_is_not_asked_again_for_each_request(on_failure, pause):
    pause(1000)
    async with hooked(lambda texts: None, timeout=1.5, on_failure=on_failure) as (screen, hook, _):
        requests = [chat(system(f"{SECRET} {number}"), mode="mask") for number in range(8)]
        results = [(await asyncio.gather(screen.inspect(each), return_exceptions=True))[0] for each in requests]
    assert len(hook.asked) == detector_pause.FAILURES_IN_A_ROW
    if on_failure == "open":
        assert {result.fields["messages"][0]["content"][:8] for result in results} == {"[email] "}
    else:
        assert "within 1.5 seconds" in results[0].message
        assert "gave no answer 3 times in a row" in results[-1].message


async def test_one_that_answers_again_is_asked_again(pause):
    pause(0)
    async with hooked(lambda texts: None, timeout=0.2, on_failure="open") as (screen, hook, _):
        for number in range(detector_pause.FAILURES_IN_A_ROW + 1):
            await screen.inspect(chat(system(f"Anna {number}"), mode="mask"))
        hook.answer = names
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                result = await screen.inspect(chat(system("Anna"), mode="mask"))
                if result.fields["messages"][0]["content"] == "[person_name]":
                    break


async def test_answers_that_are_refused_do_not_stop_the_calls(pause):
    pause(1000)
    async with hooked(lambda texts: b"no", on_failure="open") as (screen, hook, _):
        for number in range(8):
            await screen.inspect(chat(system(f"Anna {number}"), mode="mask"))
        assert len(hook.asked) == 8


def test_after_the_pause_one_call_at_a_time_is_on_trial():
    pause = detector_pause.DetectorPause()
    for _ in range(detector_pause.FAILURES_IN_A_ROW):
        assert pause.admits(10.0)
        pause.failed(10.0)
    later = 10.0 + detector_pause.PAUSE_SECONDS
    assert not pause.admits(later - 0.1)
    assert [pause.admits(later) for _ in range(3)] == [True, False, False]
    pause.abandoned()
    assert pause.admits(later)
    pause.failed(later)
    assert not pause.admits(later + 0.1)
    assert pause.admits(later + detector_pause.PAUSE_SECONDS)
    pause.answered()
    assert all(pause.admits(later) for _ in range(3))


async def test_reports_of_what_the_patterns_find_do_not_wait_for_one_that_hangs(pause):
    pause(0)  # a call on trial at any time
    async with hooked(lambda texts: None, timeout=0.2) as (screen, hook, observer):
        for _ in range(detector_pause.FAILURES_IN_A_ROW):
            screen.answered(chat(system(SECRET), mode="report"), "s")
        await idle(screen, observer, detector_pause.FAILURES_IN_A_ROW)
        asked = len(hook.asked)
        for number in range(200):
            screen.answered(chat(system(f"{SECRET} {number}"), mode="report"), "s")
        await idle(screen, observer, detector_pause.FAILURES_IN_A_ROW + 199)
        assert len(hook.asked) - asked <= 20


async def test_report_asks_it_after_the_answer():
    async with hooked(names) as (screen, hook, observer):
        original = chat(system(TEXT), mode="report")
        assert await screen.inspect(original) is original
        assert not hook.asked
        screen.answered(original, "s")
        await idle(screen, observer, 2)
        assert [finding.kind for _, finding, _, _ in observer.seen] == ["person_name", "email"]


async def test_a_failure_in_report_mode_is_counted_beside_what_the_patterns_found():
    async with hooked(lambda texts: b"no") as (screen, _, observer):
        screen.answered(chat(system(TEXT), mode="report"), "s")
        await idle(screen, observer, 1)
        assert [finding.kind for _, finding, _, _ in observer.seen] == ["email"]
        assert observer.skipped == 1


async def test_an_address_without_a_path_is_asked_at_its_root():
    async with hooked(names, path="/") as (screen, hook, _):
        await screen.inspect(chat(system(TEXT), mode="mask"))
    assert hook.heads[0].startswith("POST / HTTP/1.1")


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"url": "localhost:8900"}, "expected an http or https URL"),
        ({"url": "ftp://host/x"}, "expected an http or https URL"),
        ({"url": "http://host:0/x"}, "expected an http or https URL"),
        ({"url": "http://host/x y"}, "expected an http or https URL"),
        ({"url": "http://me:pw@host/x"}, "give a secret as api_key"),
        ({"url": "http://host/x?a=1"}, "without user, query and fragment"),
        ({"kinds": ()}, "at least 1"),
        ({"kinds": ("A b",)}, "lower-case letters"),
        ({"timeout_seconds": 0}, "greater than or equal to 0.01"),
        ({"timeout_seconds": 31}, "less than or equal to 30"),
        ({"on_failure": "maybe"}, "'closed' or 'open'"),
        ({"max_concurrent": 0}, "greater than or equal to 1"),
        ({"api_key": "two words"}, "visible ASCII"),
    ],
)
def test_mistakes_are_named(wrong, problem):
    with pytest.raises(ValidationError, match=problem):
        DetectorSettings(**({"url": "http://host/x", "kinds": ("x",)} | wrong))


async def test_the_detector_of_the_page_works():
    page = (Path(__file__).parents[3] / "docs" / "personal-data.md").read_text(encoding="utf-8")
    code = page.partition("<!-- detector: begin -->")[2].partition("```python\n")[2].partition("```")[0]
    example: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "docs/personal-data.md", "exec"), example)
    server = ThreadingHTTPServer(("127.0.0.1", 0), example["Detector"])
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}/find"
        detector = {"url": url, "kinds": ("person_name",), "timeout_seconds": 20.0}
        async with screening(detector=detector, where="all") as (screen, _):
            result = await screen.inspect(chat(system("Ask Алия.", "Anna and Boris, not Annabel"), mode="mask"))
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()
    assert [message["content"] for message in result.fields["messages"]] == [
        "Ask [person_name].",
        "[person_name] and [person_name], not Annabel",
    ]
