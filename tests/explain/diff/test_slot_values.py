"""Two values in one slot of a system prompt, and how they are classified."""

import pytest
from differing import chat, code, difference

TIME = [
    ("Now: {}. Be brief.", "2026-11-21T12:00:01Z", "2026-11-21T12:00:02Z", "iso_datetime"),
    ("Now: {}. Be brief.", "2026-11-21T12:00:01.123456+01:00", "2026-11-21T12:07:41.001+01:00", "iso_datetime"),
    ("It is {} here.", "2026-11-21 12:00:01", "2026-11-22 08:15:59", "iso_datetime"),
    ("Log {} begins", "20261121T120001Z", "20261122T120001Z", "iso_datetime"),
    ("Heute ist {}. Antworte kurz.", "2026-11-21", "2026-11-22", "date"),
    ("Today is {}.", "2026/11/21", "2026/12/01", "date"),
    ("Date: {}\nBe brief.", "11/21/2026", "11/22/2026", "date"),
    ("Heute ist der {}.", "21.11.2026", "22.11.2026", "date"),
    ("Stand: {} Ende", "21.11.26", "01.12.26", "date"),
    ("Date {} ok", "21-Nov-2026", "22-Nov-2026", "date"),
    ("Date {} ok", "20261121", "20261122", "date"),
    ("Today is {}. You help.", "Saturday, 21 November 2026", "Sunday, 22 November 2026", "date"),
    ("Today is {}. You help.", "Saturday, November 21, 2026", "Tuesday, December 1, 2026", "date"),
    ("Today is {}. You help.", "November 21", "November 22", "date"),
    ("Today is {}. You help.", "November 9", "November 10", "date"),
    ("Today is the {}. You help.", "21st of November", "22nd of November", "date"),
    ("Today is {}. You help.", "Nov 21st, 2026", "Dec 3rd, 2026", "date"),
    ("It is {} now. You help.", "November 2026", "December 2026", "date"),
    ("Heute ist {}. Hilf.", "Samstag, der 21. November 2026", "Samstag, der 28. November 2026", "date"),
    ("Heute ist {}. Hilf.", "Samstag, 21. November 2026", "Sonntag, 22. März 2026", "date"),
    ("Nous sommes le {}. Aide.", "21 novembre 2026", "1 décembre 2026", "date"),
    ("Nous sommes {}. Aide.", "samedi 21 novembre 2026", "dimanche 22 août 2026", "date"),
    ("Hoy es {}. Ayuda.", "21 de noviembre de 2026", "22 de diciembre de 2026", "date"),
    ("Oggi è {}. Aiuta.", "sabato 21 novembre 2026", "lunedì 23 dicembre 2026", "date"),
    ("Hoje é {}. Ajude.", "21 de novembro de 2026", "3 de março de 2026", "date"),
    ("Vandaag is het {}. Help.", "zaterdag 21 november 2026", "zondag 22 maart 2026", "date"),
    ("Dziś jest {}. Pomagaj.", "21 listopada 2026", "1 grudnia 2026", "date"),
    ("Сегодня {}. Помогай.", "21 ноября 2026", "22 декабря 2026", "date"),
    ("Сегодня {}. Помогай.", "суббота, 21 ноября", "воскресенье, 22 ноября", "date"),
    ("Bugün {}. Yardım et.", "21 Kasım 2026 Cumartesi", "22 Aralık 2026 Pazar", "date"),
    ("今日は{}です。", "2026年11月21日", "2026年11月22日", "date"),
    ("今日は{}です。", "2026年11月21日(土)", "2026年11月22日(日)", "date"),
    ("今天是{}。请帮助用户。", "2026年11月21日 星期六", "2026年11月22日 星期日", "date"),
    ("今天是{}。请帮助用户。", "星期六", "星期日", "weekday"),
    ("现在是{}。", "2026年11月21日 上午10点", "2026年11月21日 下午3点", "datetime"),
    ("오늘은 {}입니다.", "2026년 11월 21일", "2026년 12월 3일", "date"),
    ("اليوم {} مرحبا", "21 نوفمبر 2026", "22 ديسمبر 2026", "date"),
    ("اليوم {} مرحبا", "٢١ نوفمبر ٢٠٢٦", "٢٢ نوفمبر ٢٠٢٦", "date"),
    ("आज {} है।", "21 नवंबर 2026", "22 दिसंबर 2026", "date"),
    ("Now: {}", "Sat, 21 Nov 2026 12:00:01 +0100", "Sun, 22 Nov 2026 08:00:02 +0100", "datetime"),
    ("Now: {}", "Sat, 21 Nov 2026 12:00:01 GMT", "Sat, 21 Nov 2026 12:00:09 GMT", "datetime"),
    ("Now: {} ok", "Sat Nov 21 12:00:01 UTC 2026", "Sun Nov 22 12:00:01 UTC 2026", "datetime"),
    ("Now: {} ok", "21/Nov/2026:12:00:01 +0000", "21/Nov/2026:12:00:31 +0000", "datetime"),
    ("Now: {} ok", "November 21, 2026 at 12:05 PM", "November 21, 2026 at 9:15 AM", "datetime"),
    ("Now: {} ok", "21.11.2026, 12:05 Uhr", "21.11.2026, 13:07 Uhr", "datetime"),
    ("Now: {} ok", "11/21/2026, 3:07:09 PM", "11/21/2026, 3:07:10 PM", "datetime"),
    ("The time is {}. Help.", "12:00:01", "12:00:02", "time"),
    ("The time is {}. Help.", "9:59 AM", "10:00 AM", "time"),
    ("The time is {}. Help.", "11:59 p.m.", "1:02 a.m.", "time"),
    ("The time is {}. Help.", "14:30 CET", "15:31 CET", "time"),
    ("The time is {}. Help.", "14:30:05.123+02:00", "14:30:05.987+02:00", "time"),
    ("Es ist {}. Hilf.", "14 Uhr", "15 Uhr", "time"),
    ("现在{}。", "上午10点30分", "下午2点15分", "time"),
    ("It is {} today.", "Monday", "Tuesday", "weekday"),
    ("Heute ist {}, hilf.", "Montag", "Mittwoch", "weekday"),
    ("We are in {} now.", "November", "December", "month"),
    ("The year is {} now.", "2026", "2027", "year"),
    ("It is week {} ok", "2026-W47", "2026-W48", "week"),
    ("Wir haben {} jetzt", "KW 47", "KW 48", "week"),
    ("We report {} now", "Q4 2026", "Q1 2027", "quarter"),
    ("now={} ok", "1795262400", "1795262461", "epoch"),
    ("timestamp: {}", "1795262400123", "1795262409999", "epoch"),
    ("ts={};", "1795262400.123", "1795262401.5", "epoch"),
    ("time_ns: {}", "1795262400123456789", "1795262400123999999", "epoch"),
    ("Last seen {}. Help.", "5 minutes ago", "2 hours ago", "relative"),
    ("Last seen {}. Help.", "59 minutes ago", "1 hour ago", "relative"),
    ("Zuletzt gesehen {}. Hilf.", "vor 5 Minuten", "vor 12 Minuten", "relative"),
    ("Vu {}. Aide.", "il y a 5 minutes", "il y a 2 heures", "relative"),
    ("Был {}. Помоги.", "5 минут назад", "2 часа назад", "relative"),
    ("更新于{}。", "5分钟前", "12分钟前", "relative"),
    ("Last login: {}", "yesterday", "today", "relative"),
    ("Good {}, you help.", "morning", "evening", "relative"),
    ("Up {} so far", "3 days, 04:12", "3 days, 04:13", "duration"),
    ("uptime {} so far", "4h 12m 7s", "4h 13m 1s", "duration"),
    ("Session has lasted {}", "5 minutes", "7 minutes", "duration"),
    ("Elapsed {} ok", "PT5M", "PT6M30S", "duration"),
]

IDS = [
    ("Session {} ok", "3f2b8c1e-9d4a-4b6f-8a21-0c5d7e9f1a2b", "a1b2c3d4-e5f6-4711-8899-aabbccddeeff", "uuid"),
    ("Session {} ok", "3F2B8C1E-9D4A-4B6F-8A21-0C5D7E9F1A2B", "3F2B8C1E-9D4A-4B6F-8A21-0C5D7E9F1A2C", "uuid"),
    ("Session {} ok", "3f2b8c1e9d4a4b6f8a210c5d7e9f1a2b", "a1b2c3d4e5f647118899aabbccddeeff", "hex"),
    ("ref {} ok", "deadbee1", "0badcafe", "hex"),
    ("commit {} ok", "9fceb02d0ae598e95dc970b74767f19372d61af8", "1a410efbd13591db07496601ebc7a059dd55cfe9", "hex"),
    ("Doc {} ok", "507f1f77bcf86cd799439011", "507f191e810c19729de860ea", "object_id"),
    ("Run {} ok", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01BX5ZZKBKACTAV9WEVGEMMVRZ", "ulid"),
    ("Key {} ok", "0ujtsYcgvSTl8PAuAdqWYSMnLOv", "0ujzPyRiIAffKhBux4PvQdDqMHY", "ksuid"),
    ("Row {} ok", "V1StGXR8_Z5jdHi6B-myT", "IRFa-VaY2b8KmQz_7tPxW", "random"),
    ("Nonce {} ok", "aGVsbG8gd29ybGQhIQ+/x9Zq1A==", "c2Vjb25kIHZhbHVlIQ/+y8Wr2B==", "base64"),
    (
        "Bearer {} ok",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmNHl0w5N",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIyIn0.XbPfbIHMI6arZ3Y922BhjW",
        "jwt",
    ),
    (
        "traceparent: {}",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "traceparent",
    ),
    ("x-request-id: {}", "abc-17", "xyz-18", "labelled"),
    ("session_id={} end", "k4", "p9", "labelled"),
    ("correlation-id: {}\nBe brief.", "A7", "B8", "labelled"),
    ("Tweet {} ok", "1234567890123456789", "1234567890999456789", "snowflake"),
    ("You serve {} now", "req_8f3ab2", "req_91cc07", "prefixed"),
    ("You serve {} now", "sess-12", "sess-13", "prefixed"),
    ("You serve {} now", "cus_NffrFeUfNV2Hib", "cus_OggsGfVgOW3Ijc", "prefixed"),
    ("About {} now", "ORD-2026-00017", "ORD-2026-00018", "prefixed"),
    ("Client at {} now", "192.168.0.17", "192.168.0.18", "ip"),
    ("Client at {} now", "10.0.0.1:8080", "10.0.0.2:8081", "ip"),
    ("Client at {} now", "2001:db8::8a2e:370:7334", "2001:db8::8a2e:370:7335", "ip"),
    ("Server localhost:{} now", "8080", "8081", "port"),
    ("Build {} now", "v1.4.12", "v1.4.13", "version"),
    ("Build {} now", "2.10.3-rc.1", "2.10.4", "version"),
    ("This is turn {} now", "3", "4", "counter"),
    ("This is turn {} now", "9", "10", "counter"),
    ("You handle request #{} now", "1042", "1043", "counter"),
    ("Dies ist Anfrage {}.", "17", "18", "counter"),
    ("order id: {}", "1795262400", "1795262499", "counter"),
]

USERS = [
    ("You help {} today", "anna.schmidt@example.com", "bob@example.org", "email"),
    ("E-Mail: {}\nBe brief.", "user123@example.com", "user124@example.com", "email"),
    ("Call {} back", "+49 30 1234567", "+44 20 7946 0958", "phone"),
    ("Phone: {}\nBe brief.", "4155552671", "4155559999", "phone"),
    ("You are talking to {}. Be brief.", "Anna Schmidt", "Bob Jones", "name"),
    ("You are talking to {}. Be brief.", "Anna", "Bob", "name"),
    ("Name: {}\nBe brief.", "Anna Schmidt", "Jean-Luc d'Arc", "name"),
    ("customer_name={}; be brief", "anna", "bob", "name"),
    ("姓名：{}\n请帮助。", "张伟", "王芳", "name"),
    ("Привет, пользователь {}! Помогай.", "Анна", "Иван", "name"),
    ("Locale: {}\nBe brief.", "en-US", "de-DE", "locale"),
    ("Answer in {} only.", "English", "German", "locale"),
    ("The user's zone is {} now.", "Europe/Berlin", "America/New_York", "timezone"),
    ("Plan: {}\nBe brief.", "gold", "silver", "value"),
    ("The customer is on the {} plan.", "Gold", "Silver", "value"),
    ('The user chose "{}" before.', "blue", "dark red", "value"),
    ("City: {}\nBe brief.", "Berlin", "Porto", "value"),
    ("The price is {} now.", "$49.00", "$59.00", "number"),
    ("Discount of {} now.", "12.5 %", "15.5 %", "number"),
    ("Balance: {}\nBe brief.", "1,234.50", "987.10", "number"),
]

BLANKS = [
    ("Be brief.{}Be kind.", " ", "  ", "blanks"),
    ("Be brief.{}Be kind.", " ", "\n", "blanks"),
    ("Be brief.{}Be kind.", "\n", "\n\n", "blanks"),
    ("Be brief.{}Be kind.", "\t", "    ", "blanks"),
    ("Be{}brief.", " ", "\u00a0", "blanks"),
    ("Be{}brief.", " ", "\u3000", "blanks"),
    ("Be brief.{}Be kind.", "\n", "\r\n", "line_ends"),
    ("Be brief.{}Be kind.\nBye", "\n", "\u2028", "line_ends"),
    ("Be brief.{}", "", "\n", "trailing"),
    ("Be brief.{}\nBe kind.", "", "  ", "trailing"),
    ("Be{} brief.", "", "\u200b", "zero_width"),
    ("{}Be brief.", "", "\ufeff", "zero_width"),
    ("Sei {}.", "höflich", "ho\u0308flich", "unicode_form"),
    ("{} please", "ABC", "ＡＢＣ", "unicode_form"),
    ("of{}ce please", "fi", "ﬁ", "unicode_form"),
    ("Say {} now", '"yes"', "“yes”", "quotes"),
    ("It{}s fine", "'", "’", "quotes"),
    ("pages 3{}4 only", "-", "–", "quotes"),
    ("Be kind {} and be brief", "-", "–", "dashes"),
    ("a well{}known plant", "-", "\u2011", "dashes"),
    ("wait{} go", "...", "…", "quotes"),
    ("Config: {} end", '{"a":1,"b":[1,2]}', '{"a": 1, "b": [1, 2]}', "json_spacing"),
    ("Config: {} end", '{"a":"é"}', '{"a":"\\u00e9"}', "json_spacing"),
]

EDITS = [
    ("You are a {} assistant.", "helpful", "friendly"),
    ("{} Be kind.", "Answer in one sentence.", "Never say more than you were asked for."),
    ("Valid from {} on.", "2026-11-21", "Anna Schmidt"),
    ("Since 2026-11-21{} we say please.", ", as you know,", " and for long"),
    ("Signed on 2026-11-21 {}", "by the team", "without a name"),
    ("Written 12:30 {} ago", "long", "some time"),
    ("Use {} only.", "utf-8", "utf-16"),
    ("You are {} here.", "covid-19", "covid-20"),
    ("Du bist ein {}.", "Assistent", "Berater"),
    ("Do it {}", "soon", "so that everybody is glad about it, and quickly"),
    ("internationalization{}", "", " is important"),
    ("Say {} now", "internationalization", "individualisations"),
    ("You {} go.", "may", "can"),
    ("{}Be brief.", "", "Be kind. "),
    ("Never mention {}.", "competitors and their many prices", "internal tools, tickets or their numbers at all"),
]


def _filled(template, value):
    return template.replace("{}", value, 1)


def _compared(template, one, other):
    tail = "" if template.endswith("{}") and not one.strip() else "\nThe rest stays as it is, whoever asks."
    before = chat(("system", _filled(template, one) + tail), ("user", "Hello"))
    after = chat(("system", _filled(template, other) + tail), ("user", "Hello"))
    return difference(before, after), difference(after, before)


@pytest.mark.parametrize(("template", "one", "other", "detail"), TIME)
def test_two_times_in_a_slot(template, one, other, detail):
    found, reverse = _compared(template, one, other)
    assert code(found) == ("dynamic_time", detail)
    assert code(reverse) == ("dynamic_time", detail)


@pytest.mark.parametrize(("template", "one", "other", "detail"), IDS)
def test_two_ids_in_a_slot(template, one, other, detail):
    found, reverse = _compared(template, one, other)
    assert code(found) == ("dynamic_id", detail)
    assert code(reverse) == ("dynamic_id", detail)


@pytest.mark.parametrize(("template", "one", "other", "detail"), USERS)
def test_two_users_in_a_slot(template, one, other, detail):
    found, reverse = _compared(template, one, other)
    assert code(found) == ("user_data", detail)
    assert code(reverse) == ("user_data", detail)


@pytest.mark.parametrize(("template", "one", "other", "detail"), BLANKS)
def test_the_same_text_written_differently(template, one, other, detail):
    found, reverse = _compared(template, one, other)
    assert code(found) == ("whitespace", detail)
    assert code(reverse) == ("whitespace", detail)


@pytest.mark.parametrize(("template", "one", "other"), EDITS)
def test_a_plain_edit_is_nothing_dynamic(template, one, other):
    found, reverse = _compared(template, one, other)
    assert code(found) == ("system_changed", "edited")
    assert code(reverse) == ("system_changed", "edited")


@pytest.mark.parametrize("text", sorted({_filled(row[0], row[1]) for row in [*TIME, *IDS, *USERS]}))
def test_a_value_that_stays_is_no_difference(text):
    before = chat(("system", text), ("user", "Hello"))
    assert difference(before, chat(("system", text), ("user", "Hello"), ("assistant", "Hi"), ("user", "Go on"))) is None


@pytest.mark.parametrize("value", sorted({row[1] for row in [*TIME, *IDS]}))
def test_a_value_next_to_an_edit_does_not_make_it_dynamic(value):
    before = chat(("system", f"From {value} on we say please to them."), ("user", "Hello"))
    after = chat(("system", f"From {value} on they shout at whoever comes."), ("user", "Hello"))
    assert code(difference(before, after)) == ("system_changed", "edited")
