"""Values that look like a current time or an id and are not moved are reported with the reason."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.canon.recognizer.moments import moment
from gateway.canon.rule import RuleContext, applied
from gateway.canon.rules.dynamic import DynamicSuffix
from gateway.canon.rules.dynamic.near_misses import near_misses
from gateway.canon.rules.dynamic.not_taken import NotTaken
from gateway.config.canon_settings import DynamicSuffixSettings

NOW = datetime(2026, 11, 23, 10, 0, tzinfo=UTC)
UUID = "8f14e45f-ceea-467f-a8b0-8c2d7c9b1e10"
SETTINGS = DynamicSuffixSettings()


def misses(text, now=NOW, settings=SETTINGS, moved=()):
    return near_misses(text, now.timestamp(), settings, moved)


def only(text, **options):
    (found,) = misses(text, **options)
    return found


def test_a_time_that_is_not_near_is_reported_with_its_distance():
    found = only("Server time: 2026-05-04 10:00\nBe kind.")
    assert (found.reason, found.value) == (NotTaken.FAR, "2026-05-04 10:00")
    assert found.said == "a time 203 days before now is not taken as the current time"
    later = only("Server time: 2027-06-14 10:00\nBe kind.")
    assert later.said == "a time 203 days from now is not taken as the current time"
    assert "37 hours" in only("Server time: 2026-11-21 21:00", now=NOW).said


@pytest.mark.parametrize(
    ("text", "value", "reason"),
    [
        ("We opened on 12 March 2019.", "12 March 2019", NotTaken.NO_LABEL),
        (
            "Commit 9fceb02d0ae598e95dc970b74767f19372d61af8 runs.",
            "9fceb02d0ae598e95dc970b74767f19372d61af8",
            NotTaken.NO_LABEL,
        ),
        ("For example, if the current date is 2026-11-23, answer Monday.", "2026-11-23", NotTaken.HYPOTHETICAL),
        ("They wrote that today is 2026-11-23 and went on.", "2026-11-23", NotTaken.IN_SENTENCE),
        ("In the file the date: 2026-11-23 stands.", "2026-11-23", NotTaken.WEAK_LABEL),
        ("> Current time: 2026-11-23 10:00", "2026-11-23 10:00", NotTaken.IN_DATA),
        ("Date: 2026-11-23\nName: Bob\nTotal: 12", "2026-11-23", NotTaken.RECORD),
        ("Diary of Anne.\nIt is now 10:02. Rain fell.", "10:02", NotTaken.NARRATIVE),
        (f"The order id is {UUID} always.", UUID, NotTaken.CONSTANT),
        (f"{UUID} is the key.", UUID, NotTaken.LINE_BEGIN),
        ("\n".join(f"Take {UUID[:-1]}{n} of them." for n in range(5)), UUID, NotTaken.MANY),
    ],
)
def test_every_reason(text, value, reason):
    found = misses(text)
    assert [(each.value, each.reason) for each in found][:1] == [(value, reason)]
    assert text[found[0].start : found[0].end] == value
    assert found[0].said


def test_kinds_that_are_off():
    settings = DynamicSuffixSettings(built_in=("id",))
    found = only("Current time: 2026-11-23 10:00\nBe kind.", settings=settings)
    assert (found.reason, found.said) == (NotTaken.OFF, "canon.dynamic_suffix.built_in leaves time out")


@pytest.mark.parametrize(
    "text",
    [
        "Be kind, and be brief.",
        "We open from 10:00 to 18:00 on Monday, for 12 people.",
        "Answer in 3 sentences, and cite section 4.2.",
        "Current time: 2026-11-23 10:00\nBe kind.",
        "Use version 1.2.3 of the tool.",
        "<current-date>2026-11-23</current-date>",
    ],
)
def test_what_is_taken_or_does_not_look_like_it_is_no_near_miss(text):
    assert misses(text) == []


def test_values_that_were_moved_are_left_out():
    text = "We opened on 12 March 2019."
    assert misses(text, moved=[(13, 26)]) == []


def test_the_closest_to_being_taken_come_first():
    found = misses("We opened on 12 March 2019.\nServer time: 2026-05-04 10:00\n")
    assert [each.reason for each in found] == [NotTaken.FAR, NotTaken.NO_LABEL]


def test_reporting_agrees_with_the_rule():
    """No value is both moved and a near miss."""
    text = f"Current time: 2026-11-23 09:58\nRequest id: {UUID}\nLocal date: 2020-01-01\n"
    fields = {"messages": [{"role": "system", "content": text}, {"role": "user", "content": "Hi"}]}
    edits = DynamicSuffix(SETTINGS).detect(fields, RuleContext(NOW.timestamp())).edits
    assert "2020-01-01" in applied(fields, edits)["messages"][0]["content"]
    assert [each.value for each in misses(text)] == ["2020-01-01"]


def test_long_and_hostile_texts_take_linear_time():
    assert len(misses("We met on 12 March 2019. " * 2000 + "\n" + "Made on 12 March 2019.\n" * 500)) == 500
    assert misses("1" * 200_000) == []
    assert misses("x\n" * 1_000_000) == []


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("2026-11-23", 0.0),
        ("2026-11-22 10:00", -86_400.0),
        ("2026-11-24 10:00", 86_400.0),
        ("1795428000", -14_400.0),
        ("2026-02-31", None),
    ],
)
def test_the_distance_of_a_moment_from_now(written, seconds):
    now = NOW.timestamp()
    if written.isdecimal():
        seconds = int(written) - now
    assert moment(written).seconds_from(now) == seconds


def test_the_begin_of_a_moment():
    assert moment("2026-11-23 10:00").begins() == NOW.timestamp()
    assert moment("2026-11-23").begins() == (NOW - timedelta(hours=10)).timestamp()
    assert moment("1795428000").begins() == 1795428000
    assert moment("23 November").begins() is None
