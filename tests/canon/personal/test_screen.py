"""The screen as the request's path sees it."""

import asyncio
import logging
import traceback

import pytest
import structlog
from patience import HANG_SECONDS
from screening import SECRET, chat, request, screening, system

from gateway.canon.pii.counting import Tally
from gateway.canon.pii.scanner import FoundCache, Hit, Patterns, Scanner
from gateway.config.personal_data_settings import PersonalDataSettings
from gateway.core.canonical import FindingReport, PersonalFinding
from gateway.core.errors import BadRequest, GatewayError
from gateway.core.ids import ReplicaId, Target, TenantId
from gateway.core.request import Endpoint
from gateway.core.tenant import Tenant
from gateway.routing.fair_threads import FairThreads

TEXT = f"Write to {SECRET}."
FOUND = PersonalFinding("email", "messages[0].content", 9, len(SECRET))


async def idle(screen, observer, count):
    """Until so many findings were reported."""
    async with asyncio.timeout(HANG_SECONDS):
        while len(observer.seen) < count:
            await asyncio.sleep(0.001)


async def quiet():
    """Long enough for all that is waiting to be counted."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.parametrize("mode", ["off", "report"])
async def test_modes_that_do_not_look_before_let_everything_pass(mode, monkeypatch):
    async with screening() as (screen, _):
        monkeypatch.setattr(Patterns, "find", lambda self, text: pytest.fail("looked"))
        original = chat(system(TEXT), mode=mode)
        assert await screen.inspect(original) is original


@pytest.mark.parametrize("mode", ["report", "mask", "block"])
async def test_what_was_answered_is_counted_and_reported(mode):
    async with screening() as (screen, observer):
        original = chat(system(TEXT), mode=mode)
        screen.answered(original, "s")
        assert observer.seen == []
        screen.answered(original, "s")
        await idle(screen, observer, 2)
        assert observer.seen == [("acme", FOUND, False, True), ("acme", FOUND, False, False)]
        assert screen.reports("s") == [FindingReport(FOUND, 2, False)]
        assert screen.reports("t") == ()


async def test_news_is_what_was_not_known_or_not_known_to_be_shared():
    async with screening(shared_by=2) as (screen, observer):
        for question in "abc":
            screen.answered(chat(system(TEXT, question)), "s")
        await idle(screen, observer, 3)
        assert [(shared, new) for _, _, shared, new in observer.seen] == [(False, True), (True, True), (True, False)]


async def test_off_counts_nothing_and_neither_does_warming():
    async with screening() as (screen, observer):
        screen.answered(chat(system(TEXT), mode="off"), "s")
        screen.answered(request({"messages": system(TEXT)}, warmup_target=Target(ReplicaId("r"))), "s")
        screen.answered(chat(system(TEXT)), "s")
        await idle(screen, observer, 1)
        await quiet()
        assert len(observer.seen) == 1


async def test_reports_are_most_frequent_first():
    async with screening() as (screen, observer):
        for text in ("a@b.co", "x a@b.co", "x a@b.co"):
            screen.answered(chat(system(text)), "s")
        await idle(screen, observer, 3)
        assert [(report.finding.start, report.requests) for report in screen.reports("s")] == [(2, 2), (0, 1)]


@pytest.mark.parametrize("mode", ["report", "mask", "block"])
async def test_prompts_of_completions_are_only_reported(mode):
    async with screening() as (screen, observer):
        for prompt in (TEXT, ["none", TEXT], [1, 2, 3], [[1], [2]], None):
            original = request({"prompt": prompt}, endpoint=Endpoint.COMPLETIONS, mode=mode)
            assert await screen.inspect(original) is original
            screen.answered(original, "s")
        await idle(screen, observer, 2)
        assert [finding.path for _, finding, _, _ in observer.seen] == ["prompt", "prompt[1]"]


async def test_paths_are_in_the_apis_form():
    messages = [
        {"role": "system", "content": "none"},
        {"role": "system", "content": [{"type": "text", "text": "none"}, {"type": "text", "text": TEXT}, TEXT]},
        {"role": "user", "content": TEXT},
    ]
    async with screening() as (screen, observer):
        screen.answered(chat(messages), "s")
        await idle(screen, observer, 2)
        paths = [finding.path for _, finding, _, _ in observer.seen]
        assert paths == ["messages[1].content[1].text", "messages[1].content[2]"]


async def test_block_refuses_and_reports_where_but_not_what():
    async with screening() as (screen, _):
        with pytest.raises(BadRequest) as refused:
            await screen.inspect(chat(system(f"{TEXT} or 4111111111111111"), mode="block"))
    error = refused.value
    assert (error.status, error.code, error.param) == (400, "personal_data_in_prefix", "messages[0].content")
    assert "kind `email`" in error.message
    assert f"characters 9 to {9 + len(SECRET) - 1}" in error.message
    assert "1 more" in error.message
    assert "take it out" in error.message
    assert SECRET not in error.message


async def test_block_lets_pass_what_has_nothing():
    async with screening() as (screen, _):
        original = chat(system("Be kind.", TEXT), mode="block")
        assert await screen.inspect(original) is original


class Broken:
    """Patterns that fail, quoting what they choked on."""

    has_own = False

    def __init__(self, *arguments):
        pass

    def find(self, text):
        raise ValueError(f"cannot read {text}")


@pytest.mark.parametrize("mode", ["mask", "block"])
@pytest.mark.parametrize("length", [10, 50_000])
async def test_what_cannot_be_searched_does_not_go_on(mode, length, monkeypatch):
    monkeypatch.setattr("gateway.canon.pii.screen.Patterns", Broken)
    async with screening() as (screen, _):
        with structlog.testing.capture_logs() as logs, pytest.raises(GatewayError) as failed:
            await screen.inspect(chat(system(TEXT + "x" * length), mode=mode))
    error = failed.value
    assert (error.status, error.code) == (500, "personal_data_scan_failed")
    assert [(log["event"], log["error"]) for log in logs] == [("personal_data_scan_failed", "ValueError")]
    shown = "".join(traceback.format_exception(error)) + repr(error) + repr(logs)
    assert SECRET not in shown


async def test_what_cannot_be_searched_is_no_matter_in_report_mode(monkeypatch):
    monkeypatch.setattr("gateway.canon.pii.screen.Patterns", Broken)
    async with screening() as (screen, observer):
        original = chat(system(TEXT))
        with structlog.testing.capture_logs() as logs:
            assert await screen.inspect(original) is original
            screen.answered(original, "s")
            await quiet()
            monkeypatch.undo()
            screen.configure(PersonalDataSettings())
            screen.answered(original, "s")
            await idle(screen, observer, 1)
    assert [log["error"] for log in logs] == ["ValueError"]
    assert SECRET not in repr(logs)


async def test_what_is_looked_for_can_change():
    async with screening() as (screen, observer):
        original = chat(system(f"{TEXT} EMP-1"), mode="mask")
        assert (await screen.inspect(original)).fields["messages"][0]["content"] == "Write to [email]. EMP-1"
        screen.answered(original, "s")
        await idle(screen, observer, 1)
        screen.configure(PersonalDataSettings(kinds=(), patterns=({"kind": "staff", "regex": "EMP-[0-9]"},)))
        assert (await screen.inspect(original)).fields["messages"][0]["content"] == f"{TEXT} [staff]"
        screen.answered(original, "s")
        await idle(screen, observer, 2)
        assert [report.finding.kind for report in screen.reports("s")] == ["email", "staff"]


async def test_what_waits_too_long_is_skipped_and_counted():
    async with screening() as (screen, observer):
        for _ in range(5000):  # no turn of the event loop in between
            screen.answered(chat(system(TEXT)), "s")
        assert observer.skipped == 5000 - 4096
        await idle(screen, observer, 4096)
        screen.answered(chat(system(TEXT)), "s")
        await idle(screen, observer, 4097)
        assert observer.skipped == 5000 - 4096


async def test_what_is_known_to_have_no_findings_does_not_wait():
    async with screening() as (screen, observer):
        screen.answered(chat(system("Be brief.")), "s")
        await quiet()
        for number in range(5000):  # no turn of the event loop in between
            screen.answered(chat(system("Be brief.", str(number))), "s")
        assert observer.skipped == 0


async def test_a_finding_counts_beside_texts_that_are_known_to_have_none():
    async with screening() as (screen, observer):
        for text in ("Be brief.", TEXT):
            screen.answered(chat(system(text)), "s")
        await idle(screen, observer, 1)
        both = [{"role": "system", "content": "Be brief."}, *system(TEXT)]
        screen.answered(chat(both), "s")
        await idle(screen, observer, 2)
        assert observer.seen[1][1].path == "messages[1].content"


async def test_a_text_without_findings_that_is_too_long_now_is_skipped():
    async with screening() as (screen, observer):
        screen.answered(chat(system("Be brief.")), "s")
        await quiet()
        screen._counting.max_characters = 5
        screen.answered(chat(system("Be brief.")), "s")
        await quiet()
        assert observer.skipped == 1


async def test_what_waits_is_bounded_in_bytes():
    async with screening(max_characters=50_000_000) as (screen, observer):
        large = chat(system(TEXT, "x" * 10_000_000))
        for _ in range(5):
            screen.answered(large, "s")
        assert observer.skipped == 2
        await idle(screen, observer, 3)
        for _ in range(3):  # as many fit again
            screen.answered(large, "s")
        assert observer.skipped == 2
        huge = chat(system(TEXT, "x" * 40_000_000))
        await idle(screen, observer, 6)
        screen.answered(huge, "s")  # alone, it is counted all the same
        await idle(screen, observer, 7)
        assert observer.skipped == 2


async def test_what_is_too_long_to_search_is_skipped_and_counted():
    async with screening() as (screen, observer):
        screen.answered(chat(system(TEXT + "x" * 500_000)), "s")
        screen.answered(chat(system(TEXT, "x" * 500_000)), "s")  # the user's own words do not count
        await idle(screen, observer, 1)
        assert observer.skipped == 1


@pytest.mark.parametrize("mode", ["mask", "block"])
async def test_what_is_too_long_to_search_does_not_go_on(mode):
    async with screening() as (screen, _):
        for long in ("x" * 500_001, "4111 " * 100_001):
            with pytest.raises(BadRequest) as refused:
                await screen.inspect(chat(system(long), mode=mode))
            assert (refused.value.code, refused.value.param) == ("too_long_to_search", "messages")
        fits = chat(system("x" * 500_000), mode=mode)
        assert await screen.inspect(fits) is fits


async def test_what_one_tenant_sent_is_not_remembered_for_another():
    memo = FoundCache(100_000)
    memo.put("a", "text", ())
    assert memo.get("a", "text") == ()
    assert memo.get("b", "text") is None


async def test_that_one_tenants_text_has_no_findings_is_not_known_of_another():
    scanner = Scanner(Patterns(("email",)), FairThreads(1, 2**20))
    one, other = Tenant(TenantId("a")), Tenant(TenantId("b"))
    await scanner.find(["text", TEXT], one)
    assert scanner.found.get(one.id, "text") == ()
    assert scanner.found.get(other.id, "text") is None
    assert scanner.found.get(one.id, TEXT) == (Hit("email", FOUND.start, FOUND.length),)
    assert scanner.found.get(one.id, "unknown") is None


async def test_requests_go_on_while_others_are_counted():
    async with screening() as (screen, observer):
        for n in range(500):
            screen.answered(chat(system(f"{n} {TEXT}")), "s")
        reported = []
        while len(observer.seen) < 500:
            reported.append(len(observer.seen))
            await asyncio.sleep(0)
        assert len(set(reported)) > 250


async def test_counting_ends_with_the_screen():
    async with screening() as (screen, observer):
        await quiet()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "personal-data"]
    screen.answered(chat(system(TEXT)), "s")
    await quiet()
    assert observer.seen == []


async def test_long_texts_are_searched_in_a_thread():
    import threading

    threads = set()

    class Watching(Patterns):
        def find(self, text):
            threads.add((len(text) > 16 * 1024, threading.current_thread() is threading.main_thread()))
            return super().find(text)

    async with screening() as (screen, observer):
        screen._scanner._patterns.__class__ = Watching
        for length in (100, 100_000):
            original = chat(system(TEXT + " " * length), mode="mask")
            result = await screen.inspect(original)
            assert result.fields["messages"][0]["content"].startswith("Write to [email].")
            screen.answered(chat(system(TEXT + "  " * length)), "s")
        await idle(screen, observer, 2)
    assert threads == {(False, True), (True, False)}


async def test_a_text_seen_before_is_not_searched_again(monkeypatch):
    searched = []
    find = Patterns.find
    monkeypatch.setattr(Patterns, "find", lambda self, text: searched.append(text) or find(self, text))
    async with screening() as (screen, observer):
        for _ in range(3):
            original = chat(system(TEXT), mode="mask")
            await screen.inspect(original)
            screen.answered(original, "s")
        await idle(screen, observer, 3)
    assert searched == [TEXT]


async def test_findings_of_many_places_and_spaces_are_bounded():
    async with screening() as (screen, observer):
        for n in range(1200):
            screen.answered(chat(system("x " * n + TEXT)), "one")
        await idle(screen, observer, 1200)
        starts = {report.finding.start for report in screen.reports("one")}
        assert starts == {9 + 2 * n for n in range(200, 1200)}


async def test_nothing_the_screen_holds_shows_a_text():
    async with screening() as (screen, observer):
        original = chat(system(TEXT), mode="mask")
        await screen.inspect(original)
        screen.answered(original, "s")
        await idle(screen, observer, 1)
        from gateway.canon.pii.passages import searched

        assert SECRET not in repr(screen.reports("s")) + repr(observer.seen) + repr(searched(original))


async def test_nothing_is_logged_of_what_is_found(caplog):
    caplog.set_level(logging.DEBUG)
    async with screening() as (screen, observer):
        with structlog.testing.capture_logs() as logs:
            await screen.inspect(chat(system(TEXT), mode="mask"))
            screen.answered(chat(system(TEXT)), "s")
            await idle(screen, observer, 1)
    assert logs == []
    assert SECRET not in caplog.text


def test_findings_of_all_spaces_are_bounded():
    tally = Tally(max_findings_per_space=10, max_findings=25)
    for space in "abc":
        for start in range(8):
            tally.count(space, PersonalFinding("email", "p", start, 1), shared=False)
    tally.count("a", PersonalFinding("email", "p", 0, 1), shared=False)
    for start in range(8):
        tally.count("d", PersonalFinding("email", "p", start, 1), shared=False)
        assert len(tally) <= 25
    assert [len(tally.reports(space)) for space in "abcd"] == [8, 0, 8, 8]


def test_memo_is_bounded_by_bytes():
    memo = FoundCache(100_000)
    for n in range(1000):
        memo.put("a", f"{n}" + "x" * 1000, (Hit("email", 0, 1),))
        assert memo.bytes <= 100_000
        memo.get("a", "0" + "x" * 1000)  # used all the time, it stays
    assert memo.get("a", "0" + "x" * 1000) == (Hit("email", 0, 1),)
    assert memo.get("a", "1" + "x" * 1000) is None
    assert memo.get("a", "999" + "x" * 1000) is not None


def test_memo_leaves_out_what_would_displace_the_others():
    memo = FoundCache(100_000)
    memo.put("a", "few", (Hit("email", 0, 1),))
    memo.put("a", "many", (Hit("email", 0, 1),) * 200)
    assert memo.get("a", "few") == (Hit("email", 0, 1),)
    assert memo.get("a", "many") is None
    assert memo.get("a", "unknown") is None


def test_memo_does_not_keep_the_texts():
    memo = FoundCache(100_000)
    for text in ("x" * 300_000, "é" * 300_000, "\ud800" * 300_000):  # the last one is half a character
        before = memo.bytes
        memo.put("a", text, ())
        assert memo.bytes - before < 1000
        assert memo.get("a", text) == ()


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({"role": "system", "content": [{"type": "refusal", "refusal": SECRET}]}, ("content", 0, "refusal")),
        ({"role": "system", "content": [{"type": "thinking", "thinking": SECRET}]}, ("content", 0, "thinking")),
        ({"role": "assistant", "content": "x", "reasoning_content": SECRET}, ("reasoning_content",)),
        ({"role": "assistant", "content": None, "reasoning": SECRET}, ("reasoning",)),
        ({"role": "system", "name": SECRET, "content": "x"}, ("name",)),
    ],
)
async def test_text_that_engines_take_from_elsewhere_is_masked_as_well(message, path):
    async with screening() as (screen, _):
        masked = await screen.inspect(chat([message, {"role": "user", "content": SECRET}], mode="mask"))
        assert masked.body.count(SECRET.encode()) == 1
        value = masked.fields["messages"][0]
        for step in path:
            value = value[step]
        assert value == "[email]"


@pytest.mark.parametrize("settings", [{}, {"patterns": ({"kind": "staff", "regex": "EMP-[0-9]"},)}])
async def test_text_without_findings_is_searched_once(monkeypatch, settings):
    searched: list[str] = []
    find = Patterns.find
    monkeypatch.setattr(Patterns, "find", lambda self, text: searched.append(text) or find(self, text))
    async with screening(**settings) as (screen, observer):
        for _ in range(3):
            screen.answered(chat(system("Be brief.")), "s")
            await quiet()
        screen.answered(chat(system(TEXT)), "s")
        await idle(screen, observer, 1)
    assert searched == ["Be brief.", TEXT]
