"""What is moved out of the leading messages: the piece as it stood there."""

import pytest
from moving import NOW, block, chat, left, moved, rule

from gateway.canon.rule import RuleContext, applied

LINES = """
Current time: 2026-11-21 10:02
- **Current date:** 2026-11-21 (UTC)
Current time (UTC): 2026-11-21T10:02:33Z
Current date and time: Saturday, November 21, 2026 at 10:02:33 AM GMT+0100 (Central European Standard Time)
The current date is Saturday, November 21, 2026.
The current date and time in Berlin is 2026-11-21 11:02.
Today is Saturday 21st of November 2026
Current time: 10:02 AM
Current Unix timestamp: 1795255320
Datetime: Sat Nov 21 10:02:00 2026
It is now 10:02.
Today is Monday.
now: 2026-11-21T10:02:00+00:00
Heute ist Samstag, der 21. November 2026.
Heutiges Datum: 21.11.2026, Uhrzeit: 10:02 Uhr
Nous sommes le samedi 21 novembre 2026.
Date du jour : 21/11/2026
Hoy es sábado, 21 de noviembre de 2026.
Fecha y hora actuales: 21/11/2026 10:02
Oggi è sabato 21 novembre 2026.
Data odierna: 21/11/2026
Hoje é sábado, 21 de novembro de 2026.
Vandaag is het zaterdag 21 november 2026.
Dzisiaj jest sobota, 21 listopada 2026.
Dnes je sobota 21. listopadu 2026.
Сегодня суббота, 21 ноября 2026 года.
Текущее время: 21.11.2026 10:02 (МСК)
Сейчас 10:02.
Ағымдағы уақыт: 2026-11-21 10:02
Қазір 10:02.
Сьогодні субота, 21 листопада 2026 року.
Bugün 21 Kasım 2026 Cumartesi.
Şu anki tarih ve saat: 21.11.2026 10:02
التاريخ الحالي: 21 نوفمبر 2026
اليوم هو السبت، 21 نوفمبر 2026.
التاريخ الحالي: ٢١ نوفمبر ٢٠٢٦
התאריך הנוכחי: 21 בנובמבר 2026
היום יום שבת, 21 בנובמבר 2026.
आज की तारीख: 21 नवंबर 2026
वर्तमान समय: 10:02
今日は2026年11月21日（土）です。
現在時刻: 2026年11月21日 10時02分
本日の日付: 令和8年11月21日
今天是2026年11月21日，星期六。
当前时间：2026-11-21 10:02:33
오늘은 2026년 11월 21일 토요일입니다.
현재 시간: 2026-11-21 10:02
Hôm nay là thứ Bảy, ngày 21 tháng 11 năm 2026.
วันนี้คือวันเสาร์ที่ 21 พฤศจิกายน 2569
Tänään on lauantai 21. marraskuuta 2026.
Idag är det lördag den 21 november 2026.
Date: 2026-11-21, Time: 10:02
Timestamp: 1795255320
2026-11-21 10:02 UTC
Session ID: abc123
Request-ID: req_8f7a6b5c4d
trace_id=4bf92f3577b34da6a3ce929d0e0e4736
traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
Your session id is 3f2b8c1e-1111-4222-8333-123456789abc.
User ID: 42
Sitzungs-ID: ab12cd34
会话ID：8f7a6b5c4d
x-anthropic-billing-header: cc_version=2.1.15; cch=0ab1c;
""".strip().splitlines()


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_is_about_the_value_alone_moves_as_a_whole(line):
    bare = line.removeprefix("- ")
    assert moved(f"You are Eva.\n{line}\nBe nice.") == [bare]
    assert left(f"You are Eva.\n{line}\nBe nice.") == f"You are Eva.\n{line.removesuffix(bare)}[context 1]\nBe nice."


def test_the_text_and_the_block_as_they_go_on():
    text = (
        "You are Eva.\nCurrent time: 2026-11-21 10:02\nHelp. Today is November 21, 2026. Be short.\n"
        "Your session id is s_12ab34, ok?"
    )
    fields = chat("Hi", leading=text)
    system, user = applied(fields, rule().detect(fields, RuleContext(NOW)).edits)["messages"]
    assert (
        system["content"]
        == "You are Eva.\n[context 1]\nHelp. [context 2] Be short.\nYour session id is [context 3], ok?"
    )
    assert user["content"] == "Hi" + block(
        "[context 1] Current time: 2026-11-21 10:02", "[context 2] Today is November 21, 2026.", "[context 3] s_12ab34"
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("You are Eva, today is November 21, 2026, and you help.", "November 21, 2026"),
        ("It's late (current time: 2026-11-21 23:02) so be short.", "2026-11-21 23:02"),
        ("<env>Today's date: 2026-11-21</env>", "2026-11-21"),
        ("<current_time>2026-11-21T10:02:00Z</current_time>", "2026-11-21T10:02:00Z"),
        ("<session_id>8f7a6b5c4d</session_id>", "8f7a6b5c4d"),
        ("<current-date>2026-11-21</current-date>", "2026-11-21"),
        ("<currentTime>10:02</currentTime>", "10:02"),
        ("<CurrentDate>21 November 2026</CurrentDate>", "21 November 2026"),
        ('<now tz="UTC">2026-11-21T10:02:00</now>', "2026-11-21T10:02:00"),
        ('{"context": {"now": "2026-11-21T10:02:00"}}', "2026-11-21T10:02:00"),
        ("(2026-11-21 10:02) You are Eva.", "(2026-11-21 10:02)"),
        ("As of now, 2026-11-21 10:02 UTC, you are on duty.", "2026-11-21 10:02 UTC"),
        ("You talk to 3f2504e0-4f89-11d3-9a0c-0305e82c3301 now.", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"),
    ],
)
def test_of_a_sentence_that_says_more_only_the_value_moves(text, value):
    assert moved(text) == [value]
    assert left(text) == text.replace(value, "[context 1]")


def test_numbers_begin_behind_those_of_the_clients_own_pointers():
    text = "See [context 4] and [context 2].\nCurrent time: 2026-11-21 10:02"
    assert left(text) == "See [context 4] and [context 2].\n[context 5]"


def test_several_leading_messages_and_parts_count_on():
    fields = {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Today is 2026-11-21."}, {"type": "odd"}]},
            {"role": "developer", "content": "Current time: 10:02"},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        ]
    }
    after = applied(fields, rule().detect(fields, RuleContext(NOW)).edits)["messages"]
    assert after[0]["content"] == [{"type": "text", "text": "[context 1]"}, {"type": "odd"}]
    assert after[1]["content"] == "[context 2]"
    assert after[2]["content"][0] is fields["messages"][2]["content"][0]
    added = block("[context 1] Today is 2026-11-21.", "[context 2] Current time: 10:02")
    assert after[2]["content"][1:] == [{"type": "text", "text": added}]


def test_line_ends_of_windows_stay():
    assert left("A.\r\nCurrent time: 2026-11-21 10:02\r\nB.") == "A.\r\n[context 1]\r\nB."


def test_kinds_can_be_left_out():
    text = "Current time: 2026-11-21 10:02\nSession ID: abc123"
    assert moved(text, built_in=("id",)) == ["Session ID: abc123"]
    assert moved(text, built_in=("time",)) == ["Current time: 2026-11-21 10:02"]
    assert moved(text, built_in=()) == []


def test_what_is_said_holds_no_text_of_the_prompt():
    found = rule().detect(chat("Hi", leading="Current time: 2026-11-21 10:02\nSession ID: abc123"), RuleContext(NOW))
    assert not [edit for edit in found.edits if "2026" in edit.summary or "abc123" in edit.summary]


@pytest.mark.parametrize("hours", [-36, -30, 0, 30, 36])
def test_another_time_zone_or_a_cached_day_is_near(hours):
    assert moved("Local time: 2026-11-21 10:02", NOW + hours * 3600) != []


@pytest.mark.parametrize("hours", [-61, 61, 24 * 365])
@pytest.mark.parametrize(
    "line",
    [
        "Local time: 2026-11-21 10:02",
        "Server time: 2026-11-21 10:02",
        "Session started at: 2026-11-21 10:02",
        "Now: 2026-11-21 10:02",
        "Today is 2026-11-21.",
        "Date: 2026-11-21",
        "As of 2026-11-21 10:02 UTC you are on duty.",
        "[2026-11-21 10:02] You are Eva.",
        '{"today": "2026-11-21"}',
        '{"local_time": "2026-11-21 10:02"}',
        "<today>2026-11-21</today>",
    ],
)
def test_farther_from_now_an_ambiguous_time_is_data(hours, line):
    assert moved(line, NOW) != []
    assert moved(line, NOW + hours * 3600) == []


@pytest.mark.parametrize("hours", [-24 * 20000, -37, 37, 24 * 365])
@pytest.mark.parametrize(
    "line",
    [
        "Current time: 2026-11-21 10:02",
        "- **Current date**: Saturday, 21 November 2026",
        "The current date and time is 2026-11-21 10:02.",
        "Today's date: 2026-11-21",
        "Aktuelles Datum: 21.11.2026",
        "Текущее время: 21.11.2026 10:02",
        "現在時刻：2026年11月21日 10:02",
        '{"now": "2026-11-21T10:02:00"}',
        '{"current_time": 1795255320, "timezone": "UTC"}',
        "<now>2026-11-21T10:02:00</now>",
        "<current_date>2026-11-21</current_date>",
    ],
)
def test_a_label_that_says_current_suffices_for_any_date(hours, line):
    assert len(moved(f"You are Eva.\n{line}\nBe nice.", NOW + hours * 3600)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Order: 12\nCurrent date: 2019-03-12\nTotal: 4",
        "Dear Tom,\n\nCurrent date: 2019-03-12\n\nBest,\nAnna",
        "A walk by Tom:\nCurrent date: 2019-03-12",
        "She read that the current date is 2019-03-12 and left.",
    ],
)
def test_where_a_document_may_have_a_label_the_date_has_to_be_near(text):
    assert moved(text) == []


def test_offsets_count():
    assert moved("Local time: 2026-11-20T00:02:00+03:00") == []
    assert moved("Local time: 2026-11-20T00:02:00-02:00") != []


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ("Hi ", "Hi\n\n{}"),
        ("Hi\n\n\n", "Hi\n\n{}"),
        (" ", "{}"),
        ("", "{}"),
        ("\u200b ", "{}"),
        ("Hi\u00a0", "Hi\u00a0\n\n{}"),
    ],
)
def test_blanks_between_a_message_and_its_block_go(asked, sent):
    """With something behind them they are spaces at a line's end, which other rules take out."""
    fields = chat(asked, leading="Today is 2026-11-21.")
    after = applied(fields, rule().detect(fields, RuleContext(NOW)).edits)["messages"]
    assert after[1]["content"] == sent.format(block("[context 1] Today is 2026-11-21.").strip())


def test_what_a_tool_said_stays_as_it_is():
    fields = chat("a", leading="Today is 2026-11-21.")
    fields["messages"].append({"role": "tool", "content": "4 \n"})
    after = applied(fields, rule().detect(fields, RuleContext(NOW)).edits)["messages"]
    assert after[2]["content"] == "4 \n" + block("[context 1] Today is 2026-11-21.")


def test_a_digit_behind_a_pointer_is_none_of_its_number():
    assert left("See [context 7]2026. Today is 2026-11-21.") == "See [context 7]2026. [context 8]"
