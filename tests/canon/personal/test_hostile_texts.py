"""Texts that are made to cost time. Each would take hours if the time grew with the square of the length."""

import pytest
from cpu_limit import cpu_seconds
from levels import slow_except

from gateway.canon.pii.kinds import text_view as view
from gateway.canon.pii.scanner import Patterns
from gateway.config.personal_data_settings import BUILT_IN_KINDS

MEBIBYTE = 1 << 20


@pytest.mark.parametrize("unit", ["1", "4", "0", "@", "+", " ", "a", "A", "-", ".", "(", "\u00a0", "é", "１"])
def test_a_mebibyte_of_one_character(unit):
    with cpu_seconds(60):
        assert Patterns(BUILT_IN_KINDS).find(unit * MEBIBYTE) == ()


@pytest.mark.parametrize(
    "unit",
    slow_except(
        [
            *(
                "a@",
                "a@a.",
                "@a.",
                "a.",
                "1 ",
                "1-",
                "1.",
                "+1",
                "+1 ",
                "(1)",
                "0 1 ",
                "06 12 ",
                "4111 ",
                "4111-",
                "tel ",
                "A1",
            ),
            *(
                "phone is is is ",
                "tel 12345 6",
                "AB12",
                "DE89",
                "DE89 ",
                "1234567\n",
                "//a:",
                "a" * 70 + "@",
                "@" + "a-" * 300,
            ),
            *(
                "550e8400-e29b-41d4-a716-446655440000 ",
                "12 345 678 901 ",
                "123-45-",
                "0049 ",
                "RSSMRA85",
                "1\u00a0",
                "order #",
            ),
            *(
                ": ",
                "name: ",
                "name: A ",
                "name: A, ",
                "address: ",
                "address: 1a ",
                "order #1 ",
                "order: ab-123 ",
                "no no no 12345 ",
                "iin 540513081385 ",
                "ABCD123456",
            ),
        ],
        {": ", "name: A, ", "order: ab-123 ", "a@", "@a.", "1 ", "tel ", "DE89 ", "a" * 70 + "@"},
    ),
)
def test_a_long_text_of_beginnings(unit):
    text = (unit * (MEBIBYTE // 8 // len(unit) + 1))[: MEBIBYTE // 8]
    with cpu_seconds(10):
        Patterns(BUILT_IN_KINDS).find(text)


@pytest.mark.slow
def test_as_many_findings_as_fit():
    with cpu_seconds(60):
        assert len(Patterns(BUILT_IN_KINDS).find("+49 170 1234567, " * 10_000)) == 10_000
        assert len(Patterns(BUILT_IN_KINDS).find("4111111111111111 " * 10_000)) == 10_000
        assert len(Patterns(BUILT_IN_KINDS).find("a@b.co " * 10_000)) == 10_000


@pytest.mark.parametrize("labels", ["a.", "a1.", "a-b.", "jpg.", "é."])
def test_a_domain_of_very_many_labels(labels):
    # All the labels were gone through again for each of them.
    with cpu_seconds(60):
        Patterns({"email"}).find("x@" + labels * (4 * MEBIBYTE))


@pytest.mark.parametrize("offset", range(view._STRIDE - 40, view._STRIDE + 20, 4))
def test_what_stands_where_two_searches_of_a_long_zone_meet(offset):
    filling = "x1 " * 9000
    text = f"{filling[:offset]} +49 30 1234567 {filling}"
    assert Patterns(BUILT_IN_KINDS).find(text) == (("phone", offset + 1, len("+49 30 1234567")),)
