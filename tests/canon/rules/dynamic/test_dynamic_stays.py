"""What stays where it is: data. Moving a date out of a quoted contract is a bug."""

import pytest
from moving import NOW, chat, moved, rule

from gateway.canon.rule import NOTHING, RuleContext

LINES = """
This lease is dated 21 November 2026 and ends 2027-11-21.
Signed today, 21 November 2026, in Berlin.
The time is now to buy! Offer ends 2026-11-21.
Prices as of 2026-11-21 10:02.
Deadline: 2026-11-21
Last updated: 2026-11-21
Effective date: 21 November 2026
Meeting time: 10:02
Time: 10:02
Today's special: Pizza 4 for 10:00
Now 20% off until 2026-11-21!
If today is 2026-11-21, tomorrow is 2026-11-22.
When the current date is 2026-11-21, say so.
Beispiel: Aktuelles Datum: 21.11.2026
Say for example: today is 2026-11-21.
Answer "Current time: 2026-11-21 10:02" in such cases.
Answer “today is 2026-11-21”.
Schreibe „Heute ist der 21.11.2026“ in den Kopf.
Écris « Nous sommes le 21 novembre 2026 » en haut.
返事は「今日は2026年11月21日です」とする。
今日は11月21日の会議について話します。
<visit-date>2026-11-21</visit-date>
<current-date>2026-11-21 or later</current-date>
Say <current-date>2026-11-21</current-date> then.
{"meeting": {"now": "2026-11-21T10:02:00"}}
{"user": {"now": "2026-11-21T10:02:00"}}
{"context": {"now": "2026-11-21T10:02:00"}, "total": 4}
(2026-11-21 10:02) Anna came in.
Answer with `Current time: 2026-11-21 10:02`.
> Current time: 2026-11-21 10:02
| Current time: 2026-11-21 10:02 |
  "current_time": "2026-11-21T10:02:00Z",
User: {"now": "2026-11-21T10:02:00"}
Schema: {"now": "2026-11-21T10:02:00"}
{"current_time": "2026-11-21T10:02:00Z", "user": {"id": 4}}
As of 10:02 you are on duty.
Aujourd'hui 21 novembre 2026, les parties conviennent de ce qui suit.
On this day, 21 November 2026, the parties agree.
Text: today is 2026-11-21 and it snows.
2026-11-21 10:02:00 INFO request_id=8f7a6b5c4d3e2f done
Nov 21 10:02:00 beta systemd[1]: Current time: Sat 2026-11-21 10:02:00 UTC
3f2504e0-4f89-11d3-9a0c-0305e82c3301,2026-11-21 10:00,881,12.50
User ID: string
message id must start with msg_12345678
Each call has a request id (e.g. 3f2504e0-4f89-11d3-9a0c-0305e82c3301).
The dataset id is 3f2504e0-4f89-11d3-9a0c-0305e82c3301.
Order ID: 3f2504e0-4f89-11d3-9a0c-0305e82c3301
See https://x.org/session/3f2504e0-4f89-11d3-9a0c-0305e82c3301/a
[context 1] Current time: 2026-11-21 10:02
""".strip().splitlines()


@pytest.mark.parametrize("line", LINES)
def test_data_in_a_line(line):
    assert moved(f"You are Eva.\n{line}\nBe nice.") == []


BLOCKS = [
    "```\nCurrent time: 2026-11-21 10:02\n```",
    "~~~\nToday is 2026-11-21.",
    "<document>\nToday is 2026-11-21.\n</document>",
    '<kb_article id="4">\nCurrent time: 2026-11-21 10:02\n</kb_article>',
    "<ticket>\nToday is 2026-11-21.\n</ticket>",
    "<doc>\nToday is 2026-11-21.",
    "# Contract\n\nToday is 2026-11-21.\n\n## Part\nCurrent time: 2026-11-21 10:02",
    "## Baza wiedzy\nData: 20 listopada 2026",
    "Examples:\n\nCurrent time: 2026-11-21 10:02",
    "=== Document 1 ===\nCurrent time: 2026-11-21 10:02",
    "SERVICE AGREEMENT\n\nDate: 21 November 2026\n\nbetween A and B",
    "User: what day is it?\nAssistant: Today is 2026-11-21.",
    "Q: When?\nA: Today is 2026-11-21.",
    "From: maria@fjord.example\nTo: b@c.example\nDate: Sat, 21 Nov 2026 09:58:00 +0000\n\nToday is 2026-11-21.",
    "Dear Tom,\n\nDate: 2026-11-21\nwe wait.\n\nBest,\nAnna",
    "Dear Tom,\n\ntoday is 21 November 2026.\n\nBest,\nAnna",
    "Order: 12\nDate: 2026-11-21\nTotal: 4",
    "2026-11-20\n2026-11-21\n2026-11-22",
    "deployment:\n  name: x\n  current_time: 2026-11-21",
    "{\n  current_time: 2026-11-21\n}",
    "Essay by student 12:\nToday is Saturday, 21 November 2026. My summer was short.",
    "\n".join(f"Ask 3f2504e0-4f89-11d3-9a0c-0305e82c330{n} for it." for n in range(4)),
]


@pytest.mark.parametrize("piece", BLOCKS)
def test_data_in_a_passage(piece):
    assert moved(f"You are Eva.\n\n{piece}") == []


@pytest.mark.parametrize(
    "text",
    [
        "<now>2026-11-21T10:01:00</now>\n<now>2026-11-21T10:02:00</now>",
        '<now n="1">2026-11-21T10:01:00</now>\n<now n="2">2026-11-21T10:02:00</now>',
        "<session_id>abc123</session_id>\n<session_id>abc124</session_id>",
        "<now>10:01</now>\n<current_time>10:01</current_time>\n\n<now>10:02</now>\n<current_time>10:02</current_time>",
    ],
)
def test_several_elements_of_the_same_name_are_records(text):
    assert moved(f"You are Eva.\n\n{text}") == []


def test_elements_of_different_names_and_what_stands_beside_records_move():
    assert len(moved("<now>2026-11-21T10:02:00</now>\n<session_id>abc123</session_id>")) == 2
    records = "<now>2026-11-21T10:01:00</now>\n<now>2026-11-21T10:02:00</now>"
    assert moved(f"Current time: 10:02\n\n{records}") == ["Current time: 10:02"]


@pytest.mark.parametrize("line", ["Current time: 2026-11-21 10:02", "Date: 2026-11-21", "Request ID: req_8f7a6b5c4d"])
def test_more_than_fifty_values_are_data(line):
    assert len(moved(f"{line}\n\n" * 50)) == 50
    assert moved(f"{line}\n\n" * 51) == []


def test_many_ambiguous_dates_do_not_keep_the_current_time():
    text = "Date: 2026-11-21\nTotal: 4\n" * 60
    assert moved(f"Current time: 2026-11-21 10:02\n\n{text}") == ["Current time: 2026-11-21 10:02"]


NARRATIVES = """
Heute ist Samstag. Es ist jetzt 10:02 Uhr. Ich sitze am Fenster.
It is now 10:02 and I hear steps.
Today is 21 November 2026.\\nI woke up late.
Question 4. It is now 10:02. How late is it in 40 minutes?
# Diary\\n\\nIt is now 10:02. Rain fell.
Anne's diary\\nIt is now 10:02.
Summarize the text below.\\n\\nToday is 21 November 2026. Rain fell.
Translate into German.\\n\\nToday is 21 November 2026.
Current date: 2026-11-21. I went home.
""".strip().splitlines()


@pytest.mark.parametrize("text", NARRATIVES)
def test_the_time_of_a_story_or_of_a_text_to_work_on(text):
    assert moved(text.replace("\\n", "\n")) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Diary entries are short.\nToday is 2026-11-21.", "Today is 2026-11-21."),
        ("Exercise caution.\nToday is 2026-11-21.", "Today is 2026-11-21."),
        ("You write stories.\nToday is 2026-11-21.", "Today is 2026-11-21."),
        ("Today is 2026-11-21.\n\nI want you to be kind.", "Today is 2026-11-21."),
        ("Translate into German.\n\nCurrent time: 2026-11-21 10:02", "Current time: 2026-11-21 10:02"),
        ("Translate this.\n\n<text>\nHi\n</text>\n\nToday is 2026-11-21.", "Today is 2026-11-21."),
        ("Chapter 3. Rain fell.\n\n# Context\nToday is 2026-11-21.", "Today is 2026-11-21."),
        ("Chapter 3. Rain fell.\n\n<now>2026-11-21T10:02:00</now>", "2026-11-21T10:02:00"),
        ("As of 2026-11-21 10:02 you are on duty. The owner is away.", "2026-11-21 10:02"),
    ],
)
def test_what_is_no_narrative_or_stands_in_a_line_of_its_own_moves(text, value):
    assert moved(text) == [value]


def test_in_a_narrative_a_date_has_to_be_near_now_also_in_a_line_of_its_own():
    assert moved("Translate into German.\n\nCurrent time: 2021-05-03 10:02") == []


def test_behind_the_data_things_move_again():
    text = "<doc>\nToday is 2026-11-20.\n</doc>\n\n# Context\nToday is 2026-11-21.\n```\nToday is 2026-11-21.\n```"
    assert moved(text) == ["Today is 2026-11-21."]


def test_the_body_under_several_mail_headers_stays():
    assert moved("You are Eva.\n\nFrom: maria@fjord.example\nTo: b@c.example\n\nToday is 2026-11-21.") == []


@pytest.mark.parametrize(
    "text",
    [
        "You are Eva.\nSubject: weather\nCurrent time: 2026-11-21 10:02",
        "You are Eva.\n\nTo: all teams\n\nCurrent time: 2026-11-21 10:02",
        "From: Eva\n\nTo: all teams\n\nCurrent time: 2026-11-21 10:02",
    ],
)
def test_a_single_mail_header_does_not_make_what_follows_a_mail(text):
    assert moved(text) == ["Current time: 2026-11-21 10:02"]


def test_a_mail_among_documents_does_not_end_them_at_a_heading_below():
    mail = "From: maria@fjord.example\nTo: b@c.example\n\nWe wait."
    behind = "Context\nToday is 2026-11-21."
    assert moved(f"You are Eva.\n\n## Documents\n{mail}\n\n### {behind}") == []
    assert moved(f"You are Eva.\n\n## Documents\n{mail}\n\n## {behind}") == ["Today is 2026-11-21."]


def test_a_mail_ends_at_a_heading():
    text = "You are Eva.\n\nFrom: maria@fjord.example\nTo: b@c.example\n\nWe wait.\n\n# Context\nToday is 2026-11-21."
    assert moved(text) == ["Today is 2026-11-21."]


def test_a_list_under_a_colon_does_not_hide_what_stands_behind_it():
    assert moved("You may:\n- read\n- write\n\nToday is 2026-11-21.") == ["Today is 2026-11-21."]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "Current time: 2026-11-21 10:02"},
        {"messages": [{"role": "user", "content": "Current time: 2026-11-21 10:02"}]},
        {"messages": [{"role": "system", "content": "Current time: 2026-11-21 10:02"}]},
        {"messages": [{"role": "system", "content": "Today is 2026-11-21."}, {"role": "assistant", "content": "x"}]},
        {"messages": [{"role": "system", "content": "Today is 2026-11-21."}, {"role": "user", "content": None}]},
        {"messages": [{"role": "system", "content": "Today is 2026-11-21."}, {"role": "user"}]},
        {"messages": [{"role": "system"}, {"role": "user", "content": "Today is 2026-11-21."}]},
        {"messages": []},
    ],
)
def test_where_nothing_leads_or_nothing_can_take_a_block_nothing_moves(fields):
    assert rule().detect(fields, RuleContext(NOW)) == NOTHING


def test_messages_of_the_system_further_behind_stay():
    fields = chat("Hi", "Yes?", "So", leading="Be nice.")
    fields["messages"].insert(2, {"role": "system", "content": "Today is 2026-11-21."})
    assert rule().detect(fields, RuleContext(NOW)).edits == ()


def test_where_nothing_moves_no_blocks_are_asked_for():
    def recall(_):
        raise AssertionError

    assert rule().detect(chat("a", "b", "c"), RuleContext(NOW, recall=recall)) == NOTHING
