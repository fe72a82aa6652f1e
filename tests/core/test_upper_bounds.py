"""The bounds by which it is decided whether a document is parsed in one go."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.json_portions import upper_bounds


@given(st.binary(max_size=300) | st.text('[]{}:,"\\ aé', max_size=300).map(str.encode))
def test_they_count_every_bracket_colon_and_comma(document):
    bounds = upper_bounds(document)
    assert bounds.containers == sum(document.count(bracket) for bracket in (b"[", b"{"))
    assert bounds.members == document.count(b":")
    assert bounds.values == document.count(b",") + bounds.containers
