"""Where a text is code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from levels import slow_except

from gateway.canon.code_spans import fenced, touched


def code(text):
    return [text[start:end] for start, end in fenced(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n```\nx\n```\nb", ["```\nx\n```"]),
        ("```python title=x\nx\n```   \nb", ["```python title=x\nx\n```"]),
        ("   ~~~ a`b\n```\n~~~~\nb", ["   ~~~ a`b\n```\n~~~~"]),
        ("```\n    ```\n```\nb", ["```\n    ```\n```"]),
        ("````\n```\nx\n`````\nb", ["````\n```\nx\n`````"]),
        ("```\nx\n``` y\n~~~\n```\nb", ["```\nx\n``` y\n~~~\n```"]),
        ("a\r\n```\r\nx\r\n```\r\nb", ["```\r\nx\r\n```"]),
        ("a\r```\rx\r```\rb", ["```\rx\r```"]),
        ("a\n```\nx\n\nb", ["```\nx\n\nb"]),
        ("```", ["```"]),
        ("```\n```\n```\n```", ["```\n```", "```\n```"]),
        ("- ```\n  x\n  ```\nb", ["- ```\n  x\n  ```"]),
        ("1. one:\n\n      ```sh\n      x\n      ```\nb", ["      ```sh\n      x\n      ```"]),
        ("> ```\n> x\n> ```\nb", ["> ```\n> x\n> ```"]),
        ("a ```\nx\n", []),
        ("``` a`b\nx", []),
        ("``\nx\n``", []),
        ("-```\nx", []),
    ],
)
def test_fences(text, expected):
    assert code(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a <code>x</code> b <CODE class='y'>\n\nz</Code > c", ["<code>x</code>", "<CODE class='y'>\n\nz</Code >"]),
        ("<pre><code>x</code>\n</pre>", ["<pre><code>x</code>\n</pre>"]),
        ("The tag <pre> is for x.\n<code>y</code>", ["<code>y</code>"]),
        ("<prefix>x</prefix> <codes>y</codes>", []),
        ("<code>\n```\n</code>\nx", ["<code>\n```\n</code>"]),
        ("```\n<pre>\n```\nx</pre>", ["```\n<pre>\n```"]),
        ("a <pre>x</pre>\n```\ny", ["<pre>x</pre>", "```\ny"]),
    ],
)
def test_tags(text, expected):
    assert code(text) == expected


def test_what_touches_a_range():
    ranges = [(2, 5), (5, 7), (10, 12)]
    assert [touched(ranges, at, at + 1) for at in range(13)] == [2 <= at < 7 or 10 <= at < 12 for at in range(13)]
    assert [touched(ranges, at, at) for at in range(13)] == [at in {3, 4, 6, 11} for at in range(13)]
    assert touched(ranges, 0, 20)
    assert touched(ranges, 8, 11)
    assert not touched(ranges, 7, 10)
    assert not touched((), 0, 5)


MARKS = st.lists(
    st.sampled_from([*"`~ \t\r\nx>-", "```", "~~~~", "\n```", "\n~~~", "<pre>", "</pre>", "<code>", "</code>"])
).map("".join)


@given(MARKS)
def test_ranges_are_in_order_and_none_reaches_into_another(text):
    ends = [place for bounds in fenced(text) for place in bounds]
    assert ends == sorted(ends)
    assert all(start < end for start, end in fenced(text))
    assert all(end <= len(text) for end in ends)


@given(MARKS)
def test_line_ends_of_any_kind_make_no_difference(text):
    plain = text.replace("\r", "")
    windows = plain.replace("\n", "\r\n")
    assert [piece.replace("\r", "") for piece in code(windows)] == code(plain)
    assert [piece.replace("\r", "\n") for piece in code(plain.replace("\n", "\r"))] == code(plain)


@pytest.mark.parametrize(
    "text",
    slow_except(
        [
            "`" * 1_000_000,
            "a ``` " * 200_000,
            "```a\n" * 200_000,
            "\n".join("`" * length for length in range(1500, 2, -1)),
            "\n".join("`" * length for length in range(3, 1500)),
            "<pre>" * 200_000,
            "<pre " * 200_000,
            "<pre>" + "</pre " * 200_000,
            "```\n<pre>\n```\n" * 50_000 + "</pre>",
            "<pre>\n```\n</pre>\n" * 50_000,
            "~~~a\n```b`\n" * 100_000,
            "> " * 500_000 + "```",
            " " * 1_000_000 + "```",
            (" " * 1000 + "```x`\n") * 1000,
            "```\n" + "``` x\r" * 100_000,
        ],
        {1_200_000, 1_127_244, 1_125_743, 1_200_005, 700_006},
        key=len,
    ),
    ids=str.__len__,
)
def test_texts_made_to_be_slow(text):
    # Quadratic, any of these would take minutes.
    assert all(start < end for start, end in fenced(text))
