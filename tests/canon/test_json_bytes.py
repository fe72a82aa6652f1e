"""Values of a JSON text exchanged at their place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import json_edit as json_bytes
from gateway.core.json_edit import inserted, last_member_value, member_values, replaced, with_members, without
from gateway.core.portions import finished


@pytest.mark.parametrize(
    ("document", "path", "expected"),
    [
        (b'{"a":"x"}', ("a",), b'{"a":"NEW"}'),
        (b' { "a" : "x" , "b" : 1 } ', ("a",), b' { "a" : "NEW" , "b" : 1 } '),
        (b'{"a":"x","a":"y"}', ("a",), b'{"a":"x","a":"NEW"}'),
        (b'{"a":{"b":"x"},"a":{"b":"y"}}', ("a", "b"), b'{"a":{"b":"x"},"a":{"b":"NEW"}}'),
        (b'{"a":{"b":"x"},"a":[0]}', ("a", 0), b'{"a":{"b":"x"},"a":[NEW]}'),
        (b'{"\\u0061":"x"}', ("a",), b'{"\\u0061":"NEW"}'),
        (b'{"a":"\\"]}\\\\","b":[]}', ("a",), b'{"a":"NEW","b":[]}'),
        (b'{"a":[[],{},"]",[{"b":"}"}],"x"],"c":NaN}', ("a", 4), b'{"a":[[],{},"]",[{"b":"}"}],"NEW"],"c":NaN}'),
        (b'{"n":1e999,"m":-Infinity,"a":"\\ud83d\\ude00"}', ("a",), b'{"n":1e999,"m":-Infinity,"a":"NEW"}'),
        ('{"ü":"ö","a":"ä"}'.encode(), ("a",), '{"ü":"ö","a":"NEW"}'.encode()),
    ],
)
def test_only_the_value_changes(document, path, expected):
    value = b"NEW" if path == ("a", 0) else b'"NEW"'
    assert replaced(document, {path: value}) == expected


def test_many_values_at_once():
    document = b'{"m":[{"c":"a"},{"c":["b",{"t":"c"}]},{"c":"d"}]}'
    values = {("m", 1, "c", 1, "t"): b'"C"', ("m", 0, "c"): b'"A"', ("m", 1, "c", 0): b'"B"'}
    assert replaced(document, values) == b'{"m":[{"c":"A"},{"c":["B",{"t":"C"}]},{"c":"d"}]}'


@pytest.mark.parametrize(
    "text", ['"' * 31, '"' * 32, '"' * 100, '\\"' * 100, "\\" * 7 + '"]', "x\\", ("\\" * 9 + '"') * 50]
)
def test_quotes_and_backslashes_without_end(text):
    document = json.dumps([text, "x", {text: text}]).encode()
    assert json.loads(replaced(document, {(1,): b'"new"'})) == [text, "new", {text: text}]
    assert json.loads(replaced(document, {(0,): b"1", (2, text): b"2"})) == [1, "x", {text: 2}]


@pytest.mark.parametrize("path", [("b",), ("a", 2), ("a", 0, "x"), ("a", "x"), (0,)])
def test_a_path_to_nowhere_is_an_error(path):
    with pytest.raises(KeyError):
        replaced(b'{"a":["x",{}]}', {path: b"1"})


def test_members_of_an_object():
    assert [b'{"a":1, "b":[2] ,"a":"3"}'[s:e] for s, e in member_values(b'{"a":1, "b":[2] ,"a":"3"}', "a")] == [
        b"1",
        b'"3"',
    ]
    assert list(member_values(b" {} ", "a")) == []
    assert inserted(b" { } ", b'"a":1') == b' {"a":1 } '
    assert inserted(b'{"b":2}', b'"a":1') == b'{"a":1,"b":2}'


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
DOCUMENTS = st.dictionaries(
    st.text(max_size=3),
    st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner)),
    min_size=1,
    max_size=5,
)


def places(value, path=()):
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from places(inner, (*path, position))


def put(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], new)
    return copy


@given(
    document=DOCUMENTS,
    data=st.data(),
    new=st.text(),
    escaped=st.booleans(),
    spaces=st.sampled_from([(",", ":"), (" ,\n ", "\t: "), (", ", ": ")]),
)
def test_replacing_is_setting_the_value(document, data, new, escaped, spaces):
    path = data.draw(st.sampled_from(list(places(document))))

    def written(value):
        return json.dumps(value, ensure_ascii=escaped, separators=spaces).encode("utf-8", "surrogatepass")

    marked = written(put(document, path, "\x00MARK"))
    before, after = marked.split(b'"\\u0000MARK"')
    result = replaced(written(document), {path: json.dumps(new).encode()})
    assert json.loads(result) == put(document, path, new)
    assert result == before + json.dumps(new).encode() + after


@given(first=DOCUMENTS, last=DOCUMENTS, data=st.data())
def test_the_last_of_two_members_is_the_one_that_counts(first, last, data):
    path = data.draw(st.sampled_from(list(places(last))))
    document = b'{"k":' + json.dumps(first).encode() + b',"x":[],"k":' + json.dumps(last).encode() + b"}"
    result = replaced(document, {("k", *path): b'"new"'})
    assert json.loads(result) == {"k": put(last, path, "new"), "x": []}
    assert result.startswith(b'{"k":' + json.dumps(first).encode() + b',"x":[],"k":')


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b'{"k":1}', b"{}"),
        (b' { "k" : [1, {"k":2}] } ', b" {  } "),
        (b'{"k":1, "a":2}', b'{"a":2}'),
        (b'{"a":2 , "k":"}"\n}', b'{"a":2\n}'),
        (b'{"a":2, "k":1 , "b":{"k":3}}', b'{"a":2, "b":{"k":3}}'),
        (b'{"k":1,"k":2,"a":0,"k":3, "b":1,"\\u006b":[],"k":{}}', b'{"a":0,"b":1}'),
        (b'{"k":1,"k":2}', b"{}"),
    ],
)
def test_an_object_without_a_member(document, expected):
    assert without(document, "k") == expected


@pytest.mark.parametrize("document", [b"{}", b'{"a":{"k":1},"kk":"k"}', b' {"a" : "k"} '])
def test_an_object_that_has_no_such_member_is_the_very_same(document):
    assert without(document, "k") is document


@given(
    members=st.lists(st.tuples(st.sampled_from(["k", "a", "b", "\u212a", ""]), SCALARS), max_size=6),
    spaces=st.sampled_from(["", " ", "\n\t", " \r\n "]),
)
def test_without_a_member_the_others_keep_their_bytes(members, spaces):
    def written(some):
        pairs = [f"{json.dumps(name)}{spaces}:{json.dumps(value)}" for name, value in some]
        return f"{{{spaces}{f',{spaces}'.join(pairs)}{spaces}}}".encode()

    left = [member for member in members if member[0] != "k"]
    if left:
        assert without(written(members), "k") == written(left)
    assert json.loads(without(written(members), "k")) == dict(left)


# Members set


class Counted(bytes):
    """A document that counts how many of its bytes are copied, in it and in what is cut from it or joined with it."""

    copied = 0

    def __getitem__(self, place):
        found = super().__getitem__(place)
        return self._copy(found) if isinstance(place, slice) else found

    def __add__(self, other):
        return self._copy(bytes(self) + other)

    def __radd__(self, other):
        return self._copy(other + bytes(self))

    def startswith(self, *given):
        return bytes(self).startswith(*given)

    def _copy(self, found):
        Counted.copied += len(found)
        return Counted(found)


NAMES = st.sampled_from(["a", "b", "c", "set", "other", 'qu"ote', "back\\slash", "é", "", "a.b"])
NESTED = st.recursive(
    SCALARS | st.just('",:{}[]\\"'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
GAPS = st.sampled_from(["", " ", "\n\t", " \r\n "])
MEMBERS = st.lists(st.tuples(NAMES, NESTED, st.booleans(), GAPS, GAPS), max_size=12)


def spelled(name, escaped):
    """A name as JSON, plain or with every character as an escape."""
    return '"' + "".join(f"\\u{ord(char):04x}" for char in name) + '"' if escaped else json.dumps(name)


def cut(members, names):
    """An object's text, cut at the values of the members of these names."""
    pieces, piece = [], "{"
    for number, (name, value, escaped, gap, gap2) in enumerate(members):
        piece += ("," if number else "") + gap + spelled(name, escaped) + gap2 + ":" + gap
        text = json.dumps(value, ensure_ascii=escaped)
        if name in names:
            pieces += [piece, text]
            piece = gap2
        else:
            piece += text + gap2
    return [each.encode() for each in [*pieces, piece + "}"]]


@given(members=MEMBERS, values=st.dictionaries(NAMES, NESTED, max_size=4))
def test_setting_members_is_parsing_and_setting_them_and_leaves_all_other_bytes(members, values):
    pieces = cut(members, values)
    document = b"".join(pieces)
    fields = json.loads(document)
    result = finished(
        with_members(document, fields, {name: json.dumps(value).encode() for name, value in values.items()})
    )
    assert json.loads(result) == fields | values
    names = [name for name, *_ in members if name in values]
    there = b"".join(
        piece if number % 2 == 0 else json.dumps(values[names[number // 2]]).encode()
        for number, piece in enumerate(pieces)
    )
    # What was missing stands in front; everything behind it is the same bytes.
    assert result.endswith(there[1:])
    if values.keys() <= fields.keys():
        assert result == there
    for name in values.keys() & fields.keys():
        start, end = finished(last_member_value(document, name))
        assert json.loads(document[start:end]) == fields[name]


@given(members=MEMBERS, name=NAMES)
def test_values_are_found_wherever_their_members_stand(members, name):
    document = b"".join(cut(members, ()))
    expected = [value for each, value, *_ in members if each == name]
    assert [json.loads(document[start:end]) for start, end in member_values(document, name)] == expected


@pytest.mark.parametrize("member", [b'"x":{}', b'"x":""', b'"x":0', b'"\\u0078":{"y":[{}]}', b'"x" : [ "]" ] '])
def test_every_byte_is_copied_a_few_times_however_many_members_are_set(member):
    document = Counted(b"{" + b",".join([member, b'"z":1'] * 3000) + b"}")
    Counted.copied = 0
    assert json.loads(finished(with_members(document, {"x", "z"}, {"x": b"[1]"}))) == {"x": [1], "z": 1}
    assert Counted.copied < 3 * len(document)


def test_members_between_those_looked_for_cost_no_step_each(monkeypatch):
    calls = []
    end_of = json_bytes._portioned_value_end
    monkeypatch.setattr(json_bytes, "_portioned_value_end", lambda *given: calls.append(given) or end_of(*given))
    document = b"{" + b'"a":"\\"}",\n"b" : [1, 2] ,"c":{},' * 10_000 + b'"x":[[1]],"d":[{"x":2}]}'
    assert [document[start:end] for start, end in member_values(document, "x")] == [b"[[1]]"]
    assert len(calls) == 2


@pytest.mark.parametrize(
    "member",
    [
        b'"x":"%b"' % (rb"\"" * 1_000_000),
        b'"x":"%b"' % (rb"\\" * 1_000_000),
        b'"x":{"y":"%b"}' % (rb"\"" * 1_000_000),
        b'"%b":1' % (rb"\"" * 1_000_000),
        b'"x":[%b]' % b",".join([rb'"\""'] * 400_000),
    ],
    ids=["quotes", "backslashes", "inside", "name", "strings"],
)
def test_one_long_value_in_front_is_passed_in_portions(member):
    document = b'{"m":1,%b,"stream_options":{"include_usage":false}}' % member
    work = last_member_value(document, "stream_options")
    pauses = 0
    try:
        while True:
            next(work)
            pauses += 1
    except StopIteration as done:
        start, end = done.value
    assert document[start:end] == b'{"include_usage":false}'
    assert pauses > 5


def test_long_work_pauses_often():
    """Between two pauses some hundred members are looked at, with anything in front of or behind them."""
    repeated = b"{" + b'"x":1,' * 20_000 + b'"y":2}'
    others = b"{" + b",".join(b'"k%d":%d' % (n, n) for n in range(20_000)) + b',"x":1}'
    assert sum(1 for _ in with_members(repeated, {"x", "y"}, {"x": b"3"})) > 20_000 / 1024
    assert sum(1 for _ in last_member_value(others, "x")) >= 1
