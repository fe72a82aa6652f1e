"""What dates are read as, and whether they are about now."""

from datetime import datetime

import pytest

from gateway.canon.recognizer.moments import moment

NOW = datetime.fromisoformat("2026-11-21T10:02:00+00:00").timestamp()

NEAR = """
2026-11-21
2026-11-21T10:02:00.123+05:30
2026-11-20T23:02:00-08:00
20261121T100200Z
21/11/26
11/21/2026 10:02 AM
21.11.2026
21. 11. 2026
2026. 11. 21.
2026/11/21
Saturday, 21 November 2026
November 21st, 2026, 10:02 PM
Sat Nov 21 10:02:00 UTC 2026
21/Nov/2026:10:02:03 +0100
21 de noviembre de 2026
21 листопада 2026
21 Kasım 2026
2026年11月21日
令和8年11月21日
2026년 11월 21일
ngày 21 tháng 11 năm 2026
21 พฤศจิกายน 2569
٢١ نوفمبر ٢٠٢٦
21 नवंबर 2026
Nov 21
November 2026
1795255320
1795255320123
""".strip().splitlines()

FAR = """
2024-03-12
12 March 2024
2026-11-24
2025年11月21日
1695255320
3 May 1887
October 2026
""".strip().splitlines()

UNKNOWN = ["10:02", "Monday", "۱۴۰۵/۰۸/۳۰", "soon", "", "99.99.2026"]


@pytest.mark.parametrize("text", NEAR)
def test_near(text):
    assert moment(text).is_near(NOW)


@pytest.mark.parametrize("text", FAR)
def test_far(text):
    assert not moment(text).is_near(NOW)


@pytest.mark.parametrize("text", UNKNOWN)
def test_owner_is_unknown(text):
    assert moment(text) is None


def test_a_day_before_and_a_day_behind_the_turn_of_the_year():
    new_year = datetime.fromisoformat("2027-01-01T08:00:00+00:00").timestamp()
    assert moment("31 December").is_near(new_year)
    assert moment("1 January").is_near(new_year - 86400)
