"""Small files that stand for very much."""

import pytest

MODEL = "id: m, replicas: ['http://h:1']"


def nested(levels: int, leaf: str = "x") -> str:
    """Each level is a list of ten of the level before."""
    lines = [f"a0: &a0 [{', '.join([leaf] * 10)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.slow
def test_aliases_inside_of_what_aliases_stand_for(mistakes):
    (reported,) = mistakes(f"models: [{{{MODEL}}}]\n" + nested(10))
    assert "more than 100,000 values with its aliases written out" in reported
    # a0 to a3 stand for 12,344 values together, a4 alone for 111,111.
    assert reported.startswith("gateway.yaml:6: a4: ")


def test_a_long_text_that_many_aliases_stand_for(mistakes):
    (reported,) = mistakes("long: &a " + "x" * 10_000 + "\nmany: [" + "*a, " * 2_000 + "]\n")
    assert "more than 10,000,000 characters with its aliases written out" in reported
    assert reported.startswith("gateway.yaml:2: many: ")


def test_a_chain_of_aliases_is_not_followed_for_ever(mistakes):
    links = "\n".join(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 3000))
    (reported,) = mistakes(f"a0: &a0 x\n{links}\n")
    assert "nested deeper than 64 levels" in reported


def test_aliases_may_be_used(load):
    one = "{id: m, replicas: ['http://h:1'], canon: &c {unicode: apply}}"
    other = "{id: n, replicas: ['http://h:2'], canon: *c}"
    first, second = load(f"models: [{one}, {other}]").models
    assert first.canon == second.canon != ()


def test_a_file_that_is_too_large(mistakes):
    (reported,) = mistakes(f"models: [{{{MODEL}}}]\n" + "#" * 2**22)
    assert "larger than 4,194,304 bytes" in reported


@pytest.mark.slow
def test_variables_without_an_end_are_looked_at_once(mistakes):
    # Each looked for its end in all of the text behind it: half a minute for this one.
    reported = mistakes("log: {level: '" + "${A:-" * 200_000 + "'}")
    assert any("does not begin a variable" in line for line in reported)


@pytest.mark.parametrize("text", ["${A:-x$y}", "${A:-$}", "${A:-$$x}", "a$b", "$${A}"])
def test_dollars_in_defaults_and_outside_of_variables(load, text):
    found = load(f"models: [{{{MODEL}}}]\nspaces: {{secret: '{text}0123456789abcdef'}}\n").spaces.secret
    expected = {"${A:-x$y}": "x$y", "${A:-$}": "$", "${A:-$$x}": "$$x", "$${A}": "${A}"}.get(text, text)
    assert found is not None
    assert found.get_secret_value() == f"{expected}0123456789abcdef"


def test_a_secret_file_that_never_ends(mistakes):
    (reported,) = mistakes(f"models: [{{{MODEL}}}]\nspaces: {{secret: file:/dev/zero}}\n")
    assert "secret file /dev/zero is larger than 65,536 bytes" in reported
