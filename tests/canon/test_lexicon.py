"""The data files: every entry has its effect on a text, none is lost, and an unusable one stops the start."""

import re
import unicodedata
from pathlib import Path

import pytest
import yaml

from gateway.canon import lexicon
from gateway.canon.code_spans import fenced
from gateway.canon.lexicon import LexiconError, by_part, entries, split, value_of
from gateway.canon.pii.scanner import Patterns
from gateway.canon.recognizer import calendar_words as calendar
from gateway.canon.recognizer.moments import moment
from gateway.canon.rule import RuleContext
from gateway.canon.rules.dash_style import DashStyle
from gateway.canon.rules.document_order import DocumentOrder
from gateway.canon.rules.dynamic import DynamicSuffix, finding, id_finder, label_before
from gateway.canon.rules.dynamic import quoted_data as words
from gateway.canon.rules.dynamic.movable_pieces import _JOINING
from gateway.canon.rules.dynamic.quoted_data import _PAIRS, Line, QuotedData, kind_of
from gateway.canon.rules.dynamic.search import stands_in_letter
from gateway.config.canon_settings import DynamicSuffixSettings
from gateway.config.document_order_settings import DocumentOrderSettings
from gateway.core.reasons import Reason
from gateway.explain.diff.cause import text_cause

FILES = {file.stem: yaml.safe_load(file.read_text("utf-8")) for file in Path(lexicon.__file__).parent.glob("*.yaml")}
NOW = 1_795_255_320.0
"""2026-11-21 10:02 UTC, a Saturday."""

LEAST = {
    "calendar": {
        "months": 264, "months_unmarked": 13, "weekdays": 153, "short_weekdays": 33, "units": 145, "relative_days":
        80, "half_days": 17, "before_time": 13, "before_date": 5, "weekday_articles": 6, "weeks": 10, "and": 6, "ago":
        13, "ago_unspaced": 8, "since": 16, "units_unspaced": 21, "just_now": 7,
    },
    "neighbours": {
        "ids": 117, "times": 52, "people": 63, "locales": 22, "language_names": 44, "phones": 17, "articles": 18,
    },
    "labels": {
        "now": 307, "now_unspaced": 71, "now_of_a_place": 31, "now_fields": 26,
        "bare": 96, "adverbs": 61, "adverbs_without_verb": 6, "beginnings": 46, "verbs": 42, "verbs_unspaced": 8,
        "connectors": 43, "weekdays": 36, "articles": 15, "joining": 23, "joining_values": 24, "request_words": 13,
        "conversation_words": 8, "request_ids": 43, "conversation_ids": 83, "id_words": 12, "id_marks": 11,
        "unknown_id_labels": 20,
    },
    "sentences": {
        "today": 34, "hypothetical": 79, "hypothetical_unspaced": 12, "hypothetical_ids": 32,
        "hypothetical_ids_unspaced": 5, "notes": 17,
        "as_of": 2, "addressed": 37, "addressed_unspaced": 5, "asks_for": 45,
        "particles": 10, "before_more": 43, "time_units": 17,
        "zone_names": 50, "zones": 5, "copulas": 15,
    },
    "documents": {
        "data": 436, "data_unspaced": 58, "fine": 83, "fine_headings": 77, "fine_headings_unspaced": 21,
        "context_labels": 151, "context_labels_unspaced": 31, "inline_tags": 21, "code_tags": 2, "log_levels": 9,
        "speakers": 89, "mail_headers": 40, "letter_headers": 11, "greetings": 64, "closings": 26, "letter_words": 7,
        "quotation_marks": 9, "positions": 66, "positions_unspaced": 16, "position_words": 40, "mark_words": 64,
        "range_words": 19,
        "before_marks": 105,
    },
    "personal_data": {
        "iban_lengths": 89, "calling_codes": 214, "phone_formats": 2, "phone_formats_with_0": 3, "phone_words": 35,
        "phone_prefixes": 5, "phone_links": 24, "counted_words": 27, "counted_links": 9, "national_id_names": 19,
        "card_issuers": 11, "picture_endings": 7, "version_words": 13, "labelled_ids": 79, "id_links": 20,
        "name_labels": 93, "name_particles": 37, "no_names": 21, "address_labels": 58, "contract_labels": 41,
        "order_labels": 44,
    },
    "narratives": {
        "kinds": 215,
        "kinds_unspaced": 22,
        "numbered": 92,
        "numbered_unspaced": 12,
        "numbered_around": 14,
        "in_front": 57,
        "behind": 25,
        "tasks": 189,
        "tasks_within": 38,
        "next_text": 63,
        "first_person": 65,
        "first_person_unspaced": 17,
        "rights": 37,
    },
    "languages": {
        "names": 28, "words": 742, "scripts": 8, "letters": 8, "rare_letters": 3, "foreign_letters": 9,
        "beginnings": 168,
    },
}  # fmt: skip
"""Number of entries of each list; a list may have more."""

AS_WRITTEN = {"weeks", "just_now", "time_units", "zone_names", "zones", "log_levels", "iban_lengths"}
STRUCTURED = {"names", "card_issuers", "phone_formats", "phone_formats_with_0"}


def listed(file, section):
    if section in STRUCTURED:
        return list(value_of(file, section))
    return entries(file, section, as_written=section in AS_WRITTEN)


def test_the_sections_are_those_with_a_test():
    assert {file: set(sections) for file, sections in FILES.items()} == {
        file: set(each) for file, each in LEAST.items()
    }


@pytest.mark.parametrize("file", LEAST)
def test_no_section_and_no_language_is_written_twice(file):
    """YAML takes the last of two equal keys, and the entries of the first are lost."""
    keys = [], []

    def walk(node, path):
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            place = f"{path}{key.value}"
            keys[place in keys[0]].append(place)
            walk(value, f"{place}.")

    walk(yaml.compose((Path(lexicon.__file__).parent / f"{file}.yaml").read_text("utf-8")), "")
    assert keys[0]
    assert keys[1] == []


@pytest.mark.parametrize("file", LEAST)
def test_no_entry_is_lost(file):
    assert {section for section, least in LEAST[file].items() if len(listed(file, section)) < least} == set()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is no text"),
        (False, "is no text"),
        (["a"], "is no text"),
        ("one, two, one", "'one' twice"),
        ("one, Two", "'Two', which must be in lower case"),
        ("one,, two", "an empty entry"),
    ],
)
def test_a_malformed_list_is_named(text, problem):
    with pytest.raises(LexiconError, match=rf"labels\.yaml: now.*{problem}"):
        split(text, "labels.yaml: now")


def test_capitals_are_allowed_where_texts_are_compared_as_written():
    assert split("UTC, Uhr,\nGMT", "x", as_written=True) == ("UTC", "Uhr", "GMT")


def test_missing_and_unreadable_files_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(lexicon, "_FOLDER", tmp_path)
    (tmp_path / "bad.yaml").write_text("a: [")
    (tmp_path / "list.yaml").write_text("- a")
    (tmp_path / "good.yaml").write_text("a: b\n")
    for file, problem in (("none", "cannot be read"), ("bad", "cannot be read"), ("list", "has no sections")):
        with pytest.raises(LexiconError, match=rf"{file}\.yaml {problem}"):
            entries(file, "a")
    with pytest.raises(LexiconError, match=r"good\.yaml: the section b is missing"):
        entries("good", "b")
    with pytest.raises(LexiconError, match=r"good\.yaml: a is no mapping"):
        by_part("good", "a")


@pytest.mark.parametrize(
    ("months", "problem"),
    [("a, b", "has 2 months"), ("a, b, c, d, e, f, g, h, i, j, k, m/a", "'a' already stands for another month")],
)
def test_a_year_has_twelve_months_of_different_names(months, problem, monkeypatch):
    monkeypatch.setattr(calendar, "by_part", lambda *_: {"x": split(months, "x")})
    with pytest.raises(LexiconError, match=problem):
        calendar._month_numbers()


def read_month(name):
    read = moment(f"5 {name} 2026")
    return read.days[0][1] if read and read.days else 0


def month_mark(name):
    return set(calendar.marked(f"am {name} da")) - set(" amd") == {calendar.MONTH}


def test_months():
    unmarked = set(entries("calendar", "months_unmarked"))
    for language, months in by_part("calendar", "months").items():
        for number, names in enumerate(months, 1):
            for name in names.split("/"):
                assert read_month(name) == number, (language, name)
                assert month_mark(unicodedata.normalize("NFC", name)) == (name not in unmarked), (language, name)


def test_every_language_has_all_weekdays():
    few = {language: len(days) for language, days in by_part("calendar", "weekdays").items() if len(days) < 7}
    assert few == {"portuguese": 6, "ukrainian": 6, "czech": 6}, "a shared name stands under one language only"


@pytest.mark.parametrize(
    ("section", "marks"),
    [
        ("weekdays", {calendar.WEEKDAY, calendar.MONTH}),
        ("short_weekdays", {calendar.SHORT_DAY, calendar.MONTH, calendar.WEEKDAY, calendar.UNIT, calendar.RELATIVE}),
        ("units", {calendar.UNIT, calendar.MONTH, calendar.WEEKDAY}),
        ("relative_days", {calendar.RELATIVE, calendar.UNIT, calendar.MONTH}),
        ("half_days", {calendar.HALF}),
    ],
)
def test_calendar_words_stand_out(section, marks):
    """A word of several lists has one mark."""
    for word in entries("calendar", section):
        if all(each >= "\u3000" for each in word):
            continue
        for part in word.split("-"):
            assert set(calendar.marked(f"x {part} x")) & marks or word in ("今天", "昨天"), word


def explained(before, after):
    cause = text_cause(before, after, is_template=True)
    return cause.reason, cause.detail


TIME = Reason.DYNAMIC_TIME


@pytest.mark.parametrize(
    ("section", "form", "details"),
    [
        ("before_time", "x 2026-11-0{n} {word} 10:0{n} x", {"datetime", "iso_datetime"}),
        ("before_date", "x 10:0{n} {word} 2026-11-0{n} x", {"datetime"}),
        ("weekday_articles", "x Monday {word} {n}. May 2026 x", {"date"}),
        ("weeks", "x {word} {n} x", {"week"}),
        ("and", "x {n} hours {word} {n} minutes x", {"duration"}),
        ("ago", "x {n} hours {word} x", {"relative"}),
        ("ago_unspaced", "x {n}天{word} x", {"relative"}),
        ("since", "x {word} {n} hours x", {"relative"}),
        ("units_unspaced", "x {n}{word}前 x", {"relative", "date", "datetime"}),
    ],
)
def test_words_of_times(section, form, details):
    for word in entries("calendar", section, as_written=True):
        found = explained(form.format(word=word, n=2), form.format(word=word, n=3))
        assert found[0] is TIME, word
        assert found[1] in details, word


def test_just_now():
    for word in entries("calendar", "just_now", as_written=True):
        assert explained(f"x: {word}", "x: 3 days ago") == (TIME, "relative"), word


@pytest.mark.parametrize(
    ("section", "form", "expected"),
    [
        ("ids", "Use {word} {n} to go on with it", (Reason.DYNAMIC_ID, "counter")),
        ("locales", "My {word}: {locale}", (Reason.USER_DATA, "locale")),
        ("phones", "The {word}: 55{n}-1234", (Reason.USER_DATA, "phone")),
        ("people", "you {word}: {name}", (Reason.USER_DATA, "name")),
    ],
)
def test_words_in_front_of_values(section, form, expected):
    for word in entries("neighbours", section):
        one, other = (
            form.format(word=word, n=n, locale=locale, name=name)
            for n, locale, name in ((51, "de", "Eva"), (47, "fr", "Max"))
        )
        assert explained(one, other) == expected, word


def test_words_of_unix_times():
    for word in entries("neighbours", "times"):
        assert explained(f"id {word}: 1795255320000000000", f"id {word}: 1795255321000000000") == (TIME, "epoch"), word


def test_names_of_languages():
    for name in entries("neighbours", "language_names"):
        other = "German" if name != "german" else "English"
        if not 4 <= len(name) <= 12:
            continue
        assert explained(f"Answer in {name} only", f"Answer in {other} only") == (Reason.USER_DATA, "locale"), name


def test_nouns_behind_articles_are_no_names():
    for word in entries("neighbours", "articles"):
        assert explained(f"Sie sind {word} Assistent hier", f"Sie sind {word} Kollege hier")[0] is None, word


RULE = DynamicSuffix(DynamicSuffixSettings())


def moved(text):
    fields = {"model": "m", "messages": [{"role": "system", "content": text}, {"role": "user", "content": "Hi"}]}
    return [edit.before for edit in RULE.detect(fields, RuleContext(NOW)).edits if edit.what == "moved"]


@pytest.mark.parametrize("section", ["now", "now_unspaced", "bare", "adverbs"])
def test_a_current_time_behind_every_label_is_moved(section):
    for label in entries("labels", section):
        found = moved(f"You are Eva.\n{label}: 2026-11-21 10:02\nBe kind.")
        assert ["2026-11-21 10:02" in each for each in found] == [True], label


def test_a_current_time_behind_every_beginning_is_moved():
    for beginning in entries("labels", "beginnings"):
        # A date behind the Czech "je" is one behind the French "je", Thursday.
        found = [moved(f"You are Eva. {beginning} {value}. Be kind.") for value in ("2026-11-21 10:02", "10:02")]
        assert [len(each) for each in found] in ([1, 1], [0, 1]), beginning


def test_words_for_now_that_need_no_verb_in_front_of_a_time_of_day():
    for word in entries("labels", "adverbs_without_verb"):
        assert moved(f"You are Eva.\n{word} 10:02.\nBe kind.") == [f"{word} 10:02."], word
        assert moved(f"You are Eva.\n{word} 10:02 x x.\nBe kind.") == [], word
    assert moved("You are Eva.\nNow 10:02.\nBe kind.") == []


def test_labels_of_a_place_need_a_date_near_now():
    for label in entries("labels", "now_of_a_place"):
        assert moved(f"You are Eva.\n{label}: 2019-03-12 10:02\nBe kind.") == [], label
        assert label in label_before.NOW_LABELS, label


def test_names_of_fields_that_say_current():
    for name in entries("labels", "now_fields"):
        for value in ("2026-11-21 10:02", "2019-03-12 10:02"):
            assert moved(f'You are Eva.\n{{"{name.replace(" ", "_")}": "{value}"}}\nBe kind.') == [value], name


def test_a_time_behind_as_of_is_moved_from_words_to_the_assistant():
    for word in entries("sentences", "as_of"):
        assert moved(f"You are Eva. {word} 2026-11-21 10:02 you are on duty.") == ["2026-11-21 10:02"], word


@pytest.mark.parametrize("section", ["addressed", "addressed_unspaced"])
def test_a_time_in_brackets_in_front_of_words_to_the_assistant_is_moved(section):
    for words_to_it in entries("sentences", section):
        assert moved(f"[2026-11-21 10:02] {words_to_it} Eva.") == ["[2026-11-21 10:02]"], words_to_it


def test_a_time_behind_as_of_stays_in_words_about_rights():
    for word in entries("narratives", "rights"):
        assert moved(f"You are Eva. As of 2026-11-21 10:02 you are {word} x.") == [], word


TODAY = "Today is 2026-11-21. Rain fell."


@pytest.mark.parametrize(
    ("section", "form"),
    [
        ("kinds", "{} 4: the rain\n"),
        ("kinds_unspaced", "{}\n"),
        ("numbered", "{} 4. "),
        ("numbered_unspaced", "{}4\n"),
        ("behind", "Diary {} anne\n"),
        ("tasks", "{} x.\n\n"),
        ("tasks_within", "x {}x.\n\n"),
        ("next_text", "You are Eva.\nTranslate {} x.\n\n"),
    ],
)
def test_headings_and_tasks_in_front_of_a_narrative(section, form):
    assert moved(form.format("x") + TODAY) == ["Today is 2026-11-21."]
    for word in entries("narratives", section):
        assert moved(form.format(word.replace("*", "ая")) + TODAY) == [], word


def test_words_in_front_of_a_kind_of_text():
    for word in entries("narratives", "in_front"):
        assert moved(f"{word}{'' if word.endswith(chr(39)) else ' '}diary\n{TODAY}") == [], word


def test_numbers_of_chapters_between_two_words():
    for each in entries("narratives", "numbered_around"):
        assert moved(each.replace(" ", "四") + "\n" + TODAY) == [], each
    assert moved("第四\n" + TODAY) != []


@pytest.mark.parametrize("section", ["first_person", "first_person_unspaced"])
def test_a_time_in_front_of_words_in_the_first_person_stays(section):
    for word in entries("narratives", section):
        assert moved(f"Today is 2026-11-21. {word}{'' if word.endswith(chr(39)) else ' '}x") == [], word


def test_an_object_behind_words_that_ask_for_one_is_no_context():
    for word in entries("sentences", "asks_for"):
        assert moved(f'You are Eva. Then {word} it.\n{{"now": "2026-11-21T10:02:00"}}') == [], word
    assert moved('You are Eva. Then go on.\n{"now": "2026-11-21T10:02:00"}') != []


@pytest.mark.parametrize("section", ["verbs", "verbs_unspaced", "connectors"])
def test_words_may_be_between_a_label_and_its_value(section):
    for word in entries("labels", section):
        low = f"the current date {word} 2026-11-21"
        assert label_before.label_before(low, low.index("2026")) is not None, word


def test_weekdays_may_be_in_front_of_a_date():
    for day in entries("labels", "weekdays"):
        low = f"current date: {day} 2026-11-21"
        label = label_before.label_before(low, low.index("2026"))
        assert label is not None, day
        assert label.value <= low.index(day), day


def test_articles_belong_to_their_label():
    for article in entries("labels", "articles"):
        low = f"x {article} current time: 10:02"
        label = label_before.label_before(low, low.index("10:"))
        assert label is not None, article
        assert label.start == 2, article


def test_joining_words():
    for word in entries("labels", "joining"):
        low = f"you are eva {word} today is 2026-11-21"
        assert label_before.opens_sentence(low, low.index("today"), clause=True), word
    assert set(entries("labels", "joining_values")) == _JOINING


def ids_in(text):
    low = text.lower()
    return id_finder.ids_in(text, low, frozenset(re.findall(r"[^\W\d_]+", low)), is_line=True)


@pytest.mark.parametrize(
    ("section", "form", "lasts"),
    [
        ("request_words", "{} id: ab12cd34ef56", False),
        ("conversation_words", "{} id: ab12cd34ef56", True),
        ("request_ids", "{}: ab12cd34ef56", False),
        ("conversation_ids", "{}: ab12cd34ef56", True),
    ],
)
def test_labels_of_ids(section, form, lasts):
    for word in entries("labels", section):
        assert [each.lasts for each in ids_in(form.format(word))] == [lasts], word


UUID = "550e8400-e29b-41d4-a716-446655440000"


def test_a_uuid_without_a_label_is_moved_except_behind_a_word_for_other_ids():
    assert len(ids_in(f"the thing {UUID}")) == 1
    for word in entries("labels", "unknown_id_labels"):
        assert ids_in(f"the {word} {UUID}") == [], word


def test_lines_with_words_for_ids_are_searched():
    for word in entries("labels", "id_words"):
        assert id_finder._may_have_label(f"a {word} b", frozenset((word,))), word
    for mark in entries("labels", "id_marks"):
        assert mark.isascii() or id_finder._may_have_label(f"a {mark} b", frozenset()), mark


def test_a_weekday_without_digits_is_searched():
    for word in entries("sentences", "today"):
        assert word in finding._TODAY
        assert word.isascii() == (word in finding._TODAY_ASCII)


@pytest.mark.parametrize("section", ["hypothetical", "hypothetical_unspaced"])
def test_conditions_and_examples(section):
    for word in entries("sentences", section):
        low = f"a thing. {word} the current date is 2026"
        assert finding._is_hypothetical(low, low.index("current")), word


@pytest.mark.parametrize("section", ["hypothetical_ids", "hypothetical_ids_unspaced"])
def test_conditions_and_examples_of_ids(section):
    for word in entries("sentences", section):
        assert ids_in(f"a thing, {word} the session id ab12cd34ef56") == [], word


def test_notes_introduce_a_current_time():
    for word in entries("sentences", "notes"):
        assert len(moved(f"You are Eva.\n{word}: the current time is 2026-11-21 10:02.")) == 1, word


def test_particles_make_a_date_an_attribute():
    for particle in entries("sentences", "particles"):
        assert moved(f"You are Eva.\n今日 2026-11-21{particle} x") == [], particle


@pytest.mark.parametrize(
    ("section", "form"),
    [
        ("before_more", "2026-11-21 {} 10:02"),
        ("time_units", "2026-11-21 10:02 {}"),
        ("zone_names", "2026-11-21 10:02 {}"),
        ("zones", "2026-11-21 10:02 ({})"),
        ("copulas", "2026-11-21 10:02 {}"),
    ],
)
def test_words_that_belong_to_a_time(section, form):
    for word in entries("sentences", section, as_written=True):
        value = form.format(word)
        line = f"current date: {value}"
        found = finding.findings(line, is_first=True, is_line=True)
        assert line[found[0].start : found[0].until] == value, word


def test_data_and_context_in_headings_and_tags():
    for section in ("data", "data_unspaced"):
        for word in entries("documents", section):
            assert words.speaks_of_data(f"the {word} here"), word
    for word in entries("documents", "data"):
        assert words.holds_data(word), word
    for section in ("fine", "fine_headings", "fine_headings_unspaced", "context_labels", "context_labels_unspaced"):
        for word in entries("documents", section):
            assert words.speaks_of_now(f"8 {word} 8"), word
    for section in ("fine", "inline_tags"):
        for word in entries("documents", section):
            assert not words.holds_data(word) or word in words.DATA_WORDS, word
    assert words.holds_data("unknown")


def test_tags_of_code():
    for tag in entries("documents", "code_tags"):
        assert fenced(f"a <{tag}>b</{tag}> c") == [(2, 8 + 2 * len(tag))], tag


@pytest.mark.parametrize(
    ("section", "form", "kind"),
    [
        ("log_levels", "at once {}: it failed", Line.DATA),
        ("speakers", "{}: it is so, then", Line.TURN),
        ("mail_headers", "{}: it is so, then", Line.MAIL),
    ],
)
def test_lines_of_logs_dialogues_and_mails(section, form, kind):
    speakers = set(entries("documents", "speakers"))
    for word in entries("documents", section, as_written=True):
        if kind is Line.MAIL and word in speakers:
            continue
        assert kind_of(form.format(word)).line is kind, word


@pytest.mark.parametrize(
    ("section", "form"),
    [("greetings", "{} Eva,"), ("closings", "{},"), ("letter_headers", "{}: it"), ("letter_words", "{} x")],
)
def test_lines_of_letters(section, form):
    for word in entries("documents", section):
        assert stands_in_letter([form.format(word.replace("*", "ая"))], 0), word


def test_quotations():
    for opening, closing in _PAIRS.items():
        for mark in closing:
            text = f"a {opening} the current date is 2026 {mark} b"
            assert QuotedData(text).hold(text.index("2026"), text.index("2026") + 4), opening


PATTERNS = Patterns(["iban", "national_id", "card", "email", "ipv4", "phone"], [])


LABELLED = Patterns(["person_name", "postal_address", "contract_number", "order_number"], [])


def kinds(text, patterns=PATTERNS):
    return [hit.kind for hit in patterns.find(text)]


def test_ibans_of_all_countries():
    for length, countries in by_part("personal_data", "iban_lengths", as_written=True).items():
        for country in countries:
            rest = "1" * (int(length) - 4)
            check = 98 - int("".join(str(int(each, 36)) for each in f"{rest}{country}00")) % 97
            assert kinds(f"pay to {country}{check:02}{rest} now") == ["iban"], country
            assert kinds(f"pay to {country}{check:02}{rest}1 now") != ["iban"], country


def test_calling_codes():
    for code in entries("personal_data", "calling_codes"):
        number = "14155552671" if code == "1" else f"{code}512345678"
        assert kinds(f"at +{number} then") == ["phone"], code
    assert kinds("at +210512345678 then") == []


PHONES = {
    "american": "(415) 555-2671",
    "brazilian": "(11) 98765-4321",
    "pairs": "06 12 34 56 78",
    "short_area": "03-1234-5678",
    "area": "030 1234567",
}


def test_national_formats():
    assert PHONES.keys() == {
        *value_of("personal_data", "phone_formats"),
        *value_of("personal_data", "phone_formats_with_0"),
    }
    for name, number in PHONES.items():
        assert kinds(f"at {number} then") == ["phone"], name


def test_words_around_phone_numbers():
    for word in entries("personal_data", "phone_words"):
        assert kinds(f"the {word}: 5552671 then") == ["phone"], word
    for word in entries("personal_data", "phone_prefixes"):
        assert kinds(f"the {word}phone: 5552671 then") == ["phone"], word
    for word in entries("personal_data", "phone_links"):
        assert kinds(f"the phone {word} 5552671 then") == ["phone"], word
    for word in entries("personal_data", "counted_words"):
        assert kinds(f"the {word} 415-555-2671 then") == [], word
    for word in entries("personal_data", "counted_links"):
        assert kinds(f"the order {word} 415-555-2671 then") == [], word


NATIONAL_IDS = {"us": "536 90 4399", "br": "52998224725", "nl": "111222333", "pl": "44051401359", "ru": "500100732259"}
NATIONAL_IDS["dk"] = "070761-4285"
NATIONAL_IDS["kz"] = "540513081385"
LABELLED_IDS = {
    "ar": "23337356958", "at": "7423603905", "au": "441413586", "bg": "1421192819", "ca": "206835191",
    "cedula": "01714668942", "cl": "1.669.423-1", "cz": "047707/099", "ee": "57312137179",
    "gb": "040 618 4984", "gr": "07010310667", "hr": "67557365714", "ie": "7248857K", "il": "18732206",
    "in": "3000 4739 2704", "is": "0702063660",
    "jmbg": "0403788720111", "kr": "250528-2764034", "kz": "540513081385", "lt": "74909240562", "lv": "161175-19997",
    "mx": "CCHM850615HDFRRN86", "my": "710225-78-0313", "nz": "47989795", "pk": "53163-1049284-1", "pt": "839745346",
    "ro": "6470505259075", "th": "6892099824527", "tr": "57664218166", "ua": "4158564649", "us": "909-74-0556",
    "za": "2012227266064",
}  # fmt: skip


def test_names_of_national_ids():
    for form, names in by_part("personal_data", "national_id_names").items():
        for name in names:
            if form == "order":
                assert kinds(f"the {name} AB 12 34 56 C then") == [], name
            else:
                assert kinds(f"the {name} {NATIONAL_IDS[form]} then") == ["national_id"], name
    assert kinds("the AB 12 34 56 C then") == ["national_id"]


def test_ids_directly_behind_their_names():
    names = by_part("personal_data", "labelled_ids")
    assert names.keys() == LABELLED_IDS.keys()
    for form, labels in names.items():
        for label in labels:
            assert kinds(f"the {label} {LABELLED_IDS[form]} then") == ["national_id"], label
            assert kinds(f"the {label}: {LABELLED_IDS[form]} then") == ["national_id"], label
    for link in entries("personal_data", "id_links"):
        assert kinds(f"the amka {link} 07010310667 then") == ["national_id"], link


def test_labels_of_names_and_addresses():
    for label in entries("personal_data", "name_labels"):
        assert kinds(f"{label}: Anna Maier", LABELLED) == ["person_name"], label
        assert kinds(f"{label} Anna Maier", LABELLED) == [], label
    for particle in entries("personal_data", "name_particles"):
        assert LABELLED.find(f"name: Anna {particle} Maier") == (("person_name", 6, 11 + len(particle)),)
    for word in entries("personal_data", "no_names"):
        assert kinds(f"surname: {word.capitalize()}", LABELLED) == [], word
    for label in entries("personal_data", "address_labels"):
        assert kinds(f"{label}: Abay 10, Almaty", LABELLED) == ["postal_address"], label


def test_labels_of_contracts_and_orders():
    for kind in ("contract", "order"):
        labels = by_part("personal_data", f"{kind}_labels")
        for label in labels["full"]:
            assert kinds(f"the {label} AB-1234 then", LABELLED) == [f"{kind}_number"], label
        for label in labels["bare"]:
            assert kinds(f"the {label} #AB-1234 then", LABELLED) == [f"{kind}_number"], label
            assert kinds(f"the {label} AB-1234 then", LABELLED) == [], label


def test_cards_of_all_issuers():
    def number(first, digits):
        head = first.ljust(digits - 1, "0")
        total = sum(int(each) * 2 - 9 * (int(each) > 4) for each in head[::-2]) + sum(map(int, head[-2::-2]))
        return f"{head}{-total % 10}"

    for name, issuer in value_of("personal_data", "card_issuers").items():
        for first in issuer["first"]:
            for end in str(first).split("-"):
                for digits in issuer["digits"]:
                    assert kinds(f"by {number(end, digits)} then") == ["card"], (name, end, digits)


def test_pictures_and_versions():
    for ending in entries("personal_data", "picture_endings"):
        assert kinds(f"see logo@2x.{ending} here") == [], ending
    for word in entries("personal_data", "version_words"):
        assert kinds(f"the {word} 10.20.30.40 here") == [], word
    assert kinds("the one at 10.20.30.40, logo@2x.com") == ["ipv4", "email"]


def sources_with(question):
    """Numbered sources in an order that the rule `document-order` changes, and whether it does."""
    sources = [f"[{number}] {text}" for number, text in enumerate(("Delta.", "Alpha.", "Gamma.", "Beta.", "Eta."), 1)]
    declared = {"name": "s", "regex": r"^\[\d+\] .+$", "number": r"^\[(\d+)\]", "numbers": "renumber"}
    rule = DocumentOrder(DocumentOrderSettings(documents=[declared]))
    fields = {"messages": [{"role": "user", "content": "\n".join([*sources, question])}]}
    return bool(rule.detect(fields, RuleContext(now=NOW)).edits)


def test_words_for_marks():
    def stays(text):
        fields = {"messages": [{"role": "user", "content": text}]}
        return not DashStyle().detect(fields, RuleContext(now=NOW)).edits

    assert not stays("Be kind — always.")
    for word in entries("documents", "mark_words"):
        assert stays(f"Be {word.replace('*', 's')} kind — always."), word
    for word in entries("documents", "before_marks"):
        assert stays(f"Be kind {word} — always."), word


def test_positions_of_documents():
    assert sources_with("What is right?")
    assert sources_with("The first time, and the last time?")
    for section in ("positions", "positions_unspaced"):
        for word in entries("documents", section):
            assert not sources_with(f"What is {word.replace('*', 's')} ?"), word
    for word in entries("documents", "position_words"):
        assert not sources_with(f"What is the {word.replace('*', 's')} source?"), word
    for word in entries("documents", "range_words"):
        assert not sources_with(f"What is in [1] {word} [3]?"), word
    for word in entries("documents", "data"):
        assert not sources_with(f"What is {word} 2?"), word
    for word in entries("documents", "data_unspaced"):
        assert not sources_with(f"{word}2?"), word
