"""A body after its fields were changed: what did not change keeps its bytes, and what comes out is what was meant."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from requests_at_random import chats

from gateway.canon.rewrite import rewritten
from gateway.canon.rule import REMOVED, Edit, applied
from gateway.core.canonical import RuleName

BODY = b"""{
  "model" : "m",
  "messages": [
    { "role": "user", "content": "caf\\u00e9 1" , "weight": 1e5},
    {"content":"caf\xc3\xa9 2","role":"system"},
    {"role": "assistant", "content": null}
  ],
  "tools":[{"type":"function","n":1.0},{"type":"other"}],
  "temperature": 0.70
}
"""


def edited(body, *changes):
    """The body after edits of (path, new value)."""
    before = orjson.loads(body)
    after = applied(before, [Edit(RuleName.PATTERN, "x", path, None, new) for path, new in changes])
    return rewritten(body, before, after)


def reordered(body, name, order):
    """The body with other items in a list, given by their old positions."""
    before = orjson.loads(body)
    return rewritten(body, before, {**before, name: [before[name][number] for number in order]})


def test_nothing_changed_nothing_written():
    fields = orjson.loads(BODY)
    assert rewritten(BODY, fields, fields) is BODY
    assert rewritten(BODY, fields, dict(fields)) == BODY


def test_a_text_alone_is_replaced():
    assert edited(BODY, (("messages", 0, "content"), "tea\n")) == BODY.replace(b'"caf\\u00e9 1"', b'"tea\\n"')


def test_several_values_at_once():
    assert edited(BODY, (("messages", 1, "content"), "tea"), (("tools", 0, "n"), 2), (("model",), "n")) == (
        BODY.replace(b'"caf\xc3\xa9 2"', b'"tea"').replace(b"1.0", b"2").replace(b'"m"', b'"n"')
    )


def test_a_member_taken_out():
    assert edited(BODY, (("temperature",), REMOVED)) == BODY.replace(b',\n  "temperature": 0.70', b"")
    assert edited(BODY, (("model",), REMOVED)) == BODY.replace(b'"model" : "m",\n  ', b"")
    assert edited(BODY, (("messages", 0, "content"), REMOVED)) == BODY.replace(b', "content": "caf\\u00e9 1"', b"")
    assert edited(b'{"a":{"b":1} }', (("a", "b"), REMOVED)) == b'{"a":{} }'


def test_a_member_taken_out_takes_all_of_its_name_along():
    assert edited(b'{"a":1, "b":2 ,"a":3,"\\u0061":4}', (("a",), REMOVED)) == b'{"b":2}'


def test_the_last_of_two_members_is_the_one_that_is_changed():
    assert edited(b'{"a":{"x":1},"b":2,"a":[1,2]}', (("a", 1), 3)) == b'{"a":{"x":1},"b":2,"a":[1,3]}'


def test_messages_that_moved_keep_their_bytes():
    first = b'{ "role": "user", "content": "caf\\u00e9 1" , "weight": 1e5}'
    second = b'{"content":"caf\xc3\xa9 2","role":"system"}'
    assert reordered(BODY, "messages", [1, 0, 2]) == BODY.replace(
        first + b",\n    " + second, second + b",\n    " + first
    )


def test_messages_left_out():
    assert reordered(BODY, "messages", [1, 2]) == BODY.replace(
        b'{ "role": "user", "content": "caf\\u00e9 1" , "weight": 1e5},\n    ', b""
    )
    assert b'"messages": []' in reordered(BODY, "messages", [])


def test_a_moved_message_with_another_text_keeps_the_rest_of_its_bytes():
    before = orjson.loads(BODY)
    user, system, assistant = before["messages"]
    body = rewritten(
        BODY, before, {**before, "messages": [{**system, "content": "tea"}, {**user, "content": "x"}, assistant]}
    )
    assert b'{"content":"tea","role":"system"},\n    { "role": "user", "content": "x" , "weight": 1e5},' in body


def test_new_items_and_members():
    before = orjson.loads(b'{"p": [ {"type":"a"}, {"type":"b"} ] }')
    after = {"p": [*before["p"], {"type": "text", "text": "ü"}], "q": {"n": 10**30}}
    assert (
        rewritten(b'{"p": [ {"type":"a"}, {"type":"b"} ] }', before, after)
        == ('{"p": [ {"type":"a"}, {"type":"b"}, {"type":"text","text":"ü"} ],"q":{"n":' + str(10**30) + "} }").encode()
    )


def test_something_new_where_nothing_was():
    before = {"a": {}, "b": []}
    after = {"a": {"n": 1, "m": 2}, "b": ["x", "y"]}
    assert rewritten(b'{"a" :{ }, "b": [ ]}', before, after) == b'{"a" :{"n":1,"m":2}, "b": ["x","y"]}'
    assert rewritten(b'{"a" :{ }, "b": [ ]}', before, {}) == b"{}"


def test_items_that_are_no_objects_keep_their_bytes():
    body = b'{"p" : ["\\u0061", 1e2, ["\\u0062", {"n": 1e5, "m": 1}], "c"]}'
    before = orjson.loads(body)
    a, number, inner, c = before["p"]
    assert rewritten(body, before, {"p": [c, number, a, inner]}) == (
        b'{"p" : ["c", 1e2, "\\u0061", ["\\u0062", {"n": 1e5, "m": 1}]]}'
    )
    assert rewritten(body, before, {"p": [a, number, [inner[0], {**inner[1], "m": 2}], "C"]}) == (
        b'{"p" : ["\\u0061", 1e2, ["\\u0062", {"n": 1e5, "m": 2}], "C"]}'
    )


def test_one_message_becomes_two():
    before = orjson.loads(BODY)
    first = before["messages"][0]
    split = [{"role": first["role"], "content": "x"}, {"content": first["content"], "role": "user"}]
    assert orjson.loads(rewritten(BODY, before, {**before, "messages": split}))["messages"] == split


def test_members_in_another_order_keep_their_bytes():
    body = b'{"f": {"b" : 1e5, "a": "\\u0061", "b": 100000000000000000000}}'
    before = orjson.loads(body)
    after = {"f": {name: before["f"][name] for name in sorted(before["f"])}}
    assert rewritten(body, before, after) == b'{"f": {"a": "\\u0061", "b": 100000000000000000000}}'


def test_numbers_that_only_python_parses():
    body = b'{"n": NaN, "m": [Infinity, 1e999, -Infinity], "x": "a"}'
    before = json.loads(body)
    assert rewritten(body, before, {**before, "x": "b"}) == body.replace(b'"a"', b'"b"')
    assert json.loads(rewritten(b'{"x":1}', {"x": 1}, {"x": [float("inf"), 2**70]})) == {"x": [float("inf"), 2**70]}
    assert rewritten(b'{"x":1}', {"x": 1}, {"x": float("nan")}) == b'{"x":NaN}'


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
def test_half_a_surrogate_pair_is_written_as_python_does(text):
    assert json.loads(rewritten(b'{"x":1}', {"x": 1}, {"x": text, "y": [text]})) == {"x": text, "y": [text]}


@pytest.mark.parametrize("space", [b"", b" "])
@pytest.mark.parametrize(
    ("new", "written"), [(True, b"true"), (1.0, b"1.0"), ("1", b'"1"'), (None, b"null"), (-0.0, b"-0.0")]
)
def test_equal_is_not_the_same(new, written, space):
    body, before = b'{"x":1' + space + b',"y":0.0}', {"x": 1, "y": 0.0}
    assert rewritten(body, before, {"x": new, "y": -0.0}) == b'{"x":' + written + space + b',"y":-0.0}'


def written(draw, value):
    """A value as JSON text, as one of the clients there are would write it, or as none would."""
    kind = draw(st.sampled_from(["javascript", "python", "python in ASCII", "odd", "odd"]))
    if kind == "odd":
        return styled(draw, value)
    spaces = {"separators": (",", ":")} if kind == "javascript" else {}
    return json.dumps(value, ensure_ascii=kind == "python in ASCII", **spaces)


def styled(draw, value):
    """A value as JSON text, in some way of writing it: other spaces at each place, escapes, members given twice."""
    space = lambda: draw(st.sampled_from(["", "", " ", "\n\t", "\r\n  "]))  # noqa: E731
    if isinstance(value, dict):
        members = [(name, styled(draw, inner)) for name, inner in value.items()]
        if members and draw(st.integers(0, 4)) == 0:
            # A value that does not count, of a name that comes again behind it. Its place is the first one's.
            members.insert(0, (members[0][0], draw(st.sampled_from(["[1]", '{"x":"]"}', '"a"']))))
        inside = (f"{space()},{space()}").join(
            f"{text(draw, name)}{space()}:{space()}{inner}" for name, inner in members
        )
        return "{" + space() + inside + space() + "}"
    if isinstance(value, list):
        inside = (f"{space()},{space()}").join(styled(draw, inner) for inner in value)
        return "[" + space() + inside + space() + "]"
    return text(draw, value)


def text(draw, value):
    return json.dumps(value, ensure_ascii=draw(st.booleans()))


def change(draw, value):
    """A value with something else in it, sharing with it all that stays."""
    kinds = ["new"] + ["inside"] * 5 * bool(value) if isinstance(value, (dict, list)) else ["new"]
    if isinstance(value, list):
        kinds += ["order", "cut", "put", "double"]
    if isinstance(value, dict):
        kinds += ["order", "cut", "put"]
    kind = draw(st.sampled_from(kinds))
    if kind == "new":
        return draw(NEW)
    if isinstance(value, dict):
        members = list(value.items())
        if kind == "order":
            members = draw(st.permutations(members))
        elif kind == "cut":
            members = [member for member in members if draw(st.booleans())]
        elif kind == "put":
            members.insert(draw(st.integers(0, len(members))), (draw(st.text()), draw(NEW)))
        else:
            number = draw(st.integers(0, len(members) - 1))
            members[number] = (members[number][0], change(draw, members[number][1]))
        return dict(members)
    items = list(value)
    if kind == "order":
        items = draw(st.permutations(items))
    elif kind == "cut":
        items = [item for item in items if draw(st.booleans())]
    elif kind == "put":
        items.insert(draw(st.integers(0, len(items))), draw(NEW))
    elif kind == "double":
        items += items
    else:
        number = draw(st.integers(0, len(items) - 1))
        items[number] = change(draw, items[number])
    return items


NEW = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@given(value=chats(), data=st.data())
def test_what_comes_out_is_what_was_meant(value, data):
    body = written(data.draw, value).encode()
    before = after = json.loads(body)
    for _ in range(data.draw(st.integers(1, 4))):
        after = change(data.draw, after) if isinstance(after, dict) else after
    if not isinstance(after, dict):
        return
    # As texts, so that the order of members counts, and 1 is not 1.0 or true.
    assert json.dumps(json.loads(rewritten(body, before, after))) == json.dumps(after)


@given(value=chats(), data=st.data())
def test_everything_around_a_changed_value_keeps_its_bytes(value, data):
    marked = written(data.draw, {"a": value, "target": ["around", "\x00", "around"], "z": value})
    old, text = json.dumps("\x00").encode(), data.draw(st.text(min_size=2))
    body = marked.encode()
    before = json.loads(body)
    after = {**before, "target": ["around", text, "around"]}
    front, back = body.rsplit(old, 1) if body.count(old) == 1 else (None, None)
    if front is not None:
        out = rewritten(body, before, after)
        assert out.startswith(front)
        assert out.endswith(back)
        assert json.loads(out[len(front) : len(out) - len(back)]) == text
