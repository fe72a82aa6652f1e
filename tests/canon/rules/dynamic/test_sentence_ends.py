"""Long lines are searched sentence by sentence."""

import re

from hypothesis import given
from hypothesis import strategies as st

from gateway.canon.rules.dynamic import search


@given(st.text(alphabet="ab.!? \n\t\u3000。！？", max_size=30))
def test_a_sentence_ends_before_a_blank_or_behind_a_wide_sign(text):
    assert search._sentence_ends(text) == [each.start() for each in re.finditer(r"(?<=[.!?])\s|(?<=[。！？])", text)]
