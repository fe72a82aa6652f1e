import unicodedata

import pytest

from gateway.explain.masked_text import masked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Anna paid 12.50 €, on 2026-11-21!", "Xxxx xxxx 99.99 €, xx 9999-99-99!"),
        ("line\r\n\tend", "xxxx␍\n\txxx"),
        ("‹b› «q» Éé 日本 ½ \u0301 \u200b \ud800 😀", "<x> «x» Xx xx 9 x x x x"),
        ("", ""),
    ],
)
def test_the_form_of_a_text_is_shown_without_its_content(text, shown):
    assert masked(text) == shown


def test_no_letter_or_digit_of_any_script_is_shown():
    everything = "".join(map(chr, range(0x11000)))
    shown = masked(everything)
    assert len(shown) == len(everything)
    for character, mask in zip(everything, shown, strict=True):
        if unicodedata.category(character)[0] in "LMN":
            assert mask in "xX9"
    assert masked(everything) == shown
