"""Registered prompts in the configuration: what is accepted, and what is said about mistakes."""

import json

import pytest

from gateway.config.settings import load_settings
from gateway.core.errors import ConfigInvalid

MODELS = 'models: [{id: m, replicas: ["http://h:8000"]}]\n'


def prompt(content, variables="{}", more=""):
    """A prompt ``p`` with one message, which stands on line 7."""
    return f"""{MODELS}prompts:
  p:
    current: v1
    versions:
      v1:
        messages: [{{role: system, content: {json.dumps(content)}}}]
        variables: {variables}
{more}"""


TONE = """  tone:
    current: v1
    versions:
      v1: {messages: [{role: system, content: 'Be {{ how }}.'}], variables: {how: kind}}
"""
A_IN_B = """  b:
    current: v1
    versions:
      v1: {messages: [{role: system, content: "{% include 'p@v1' %}"}]}
"""


def test_a_prompt_with_everything(load):
    content = (
        "{% if a and not b %}{{ a|upper }}{% else %}-{% endif %}{% for x in c %}{{ loop.index }}{{ x }}{% endfor %}"
    )
    settings = load(prompt(content + "{% include 'tone@v1' %}", "{a: null, b: false, c: [x, 1], how: kind}", TONE))
    assert settings.prompts["p"].versions["v1"].variables == {"a": None, "b": False, "c": ["x", 1], "how": "kind"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{{ a", "line 1 of the text: unexpected end of template"),
        ("x\n{% if a %}", "line 2 of the text: "),
        ("{{ a }}", "the variable 'a' is not declared (add it to variables: a: DEFAULT)"),
        ("{{ loop.index }}", "the variable 'loop' is not declared"),
        ("{{ how|shout }}", "line 1 of the text: there is no filter 'shout' for prompts (there is capitalize, "),
        ("{{ how|join(how) }}", "line 1 of the text: the arguments of 'join' must be constants"),
        ("{{ 'x' if how is loud }}", "line 1 of the text: there is no test 'loud' for prompts (there is boolean, "),
        (
            "{{ how.__class__ }}",
            "line 1 of the text: variables are texts, numbers, booleans and lists, so there is no .",
        ),
        ("{{ how * 10 }}", "line 1 of the text: mul is not part of the language of prompts (use variables, filters, "),
        ("{{ range(9) }}", "line 1 of the text: call is not part of the language of prompts"),
        ("{% set x = how %}", "line 1 of the text: assign is not part of the language of prompts"),
        (
            "{% for x in how %}{% for y in how %}{% endfor %}{% endfor %}",
            "line 1 of the text: a loop may hold no other",
        ),
        (
            "{% for x in [1] %}{{ how|upper }}{% endfor %}",
            "line 1 of the text: inside a loop the filter 'upper' may use",
        ),
        ("{% for x in [1] %}{{ how ~ x }}{% endfor %}", "line 1 of the text: inside a loop ~ may use the loop's item"),
        (
            "{% for x in [1] %}{{ how + how }}{% endfor %}",
            "line 1 of the text: inside a loop + may use the loop's item",
        ),
        ("{% for x in [1] if x in how %}{% endfor %}", "line 1 of the text: inside a loop a comparison may use the"),
        ("{% for x in [1] %}{{ x if x < 2 in how }}{% endfor %}", "line 1 of the text: inside a loop a comparison may"),
        ("{% for x in [1] %}{% if how == how %}{% endif %}{% endfor %}", "line 1 of the text: inside a loop a compar"),
        ("{{ self }}", "line 1 of the text: self is no variable of prompts"),
        (
            "{% for x in [1] %}{{ loop }}{% endfor %}",
            "line 1 of the text: loop has no value of its own (write loop.index",
        ),
        ("{% include how %}", "line 1 of the text: include takes the id and version of a prompt as text"),
        ("{% include 'tone' %}", "include names 'tone' without a version (write tone@VERSION, so that the text stays"),
        ("{% include 'tune@v1' %}", "there is no prompt 'tune' to include (there is p, tone)"),
        ("{% include 'tone@v2' %}", "the prompt 'tone' has no version 'v2' to include (there is v1)"),
        ("{% include 'p@v1' %}", "includes go in a circle: p@v1 > p@v1 (take one of them out)"),
        ("{{ '" + "x" * 10 + "' % how }}", "line 1 of the text: mod is not part of the language of prompts"),
    ],
)
def test_a_mistake_in_a_text_is_named_with_its_line_and_place(mistakes, content, said):
    (problem,) = mistakes(prompt(content, "{how: kind}", TONE))
    assert problem.startswith(f"gateway.yaml:7: prompts.p.versions.v1.messages[0].content: {said}")


def test_a_variable_that_no_text_uses(mistakes):
    (problem,) = mistakes(prompt("{% include 'tone@v1' %}", "{how: kind, haw: 1}", TONE))
    assert "prompts.p.versions.v1.variables.haw: declared, but no text uses it (use it in a message" in problem


@pytest.mark.parametrize(
    ("content", "default", "said"),
    [
        ("{{ y[5] }}", "[a]", "the prompt p cannot be filled in"),
        ("{{ y + 'x' }}", "1", "the prompt p cannot be filled in"),
        ("{% for x in y %}{% endfor %}", "text", "a loop needs a list, and got a text"),
    ],
)
def test_defaults_that_a_text_cannot_be_filled_in_with(mistakes, load, content, default, said):
    (problem,) = mistakes(prompt(content, f"{{y: {default}}}"))
    assert "prompts.p.versions.v1.variables: with these defaults: " in problem
    assert said.lower() in problem.lower()
    load(prompt(content, "{y: null}"))


def test_a_list_without_duplicates_has_a_length(load):
    load(prompt("{{ y|unique|length }}", "{y: [a, a]}"))


def test_what_a_loop_may_repeat(load):
    content = (
        "{% for x in docs|sort if x != how %}{% if x|lower in 'ab' or how == x or how and x in [1, x] %}"
        "{{ x|upper ~ '.' }}{{ loop.index + start }}{{ how }}{% endif %}{% else %}{{ how|upper }}{% endfor %}"
    )
    load(prompt(content, "{docs: [], how: kind, start: 1}"))


def test_a_circle_of_two_is_named_once(mistakes):
    (problem,) = mistakes(prompt("{% include 'b@v1' %}", more=A_IN_B))
    assert "messages[0].content: includes go in a circle: " in problem
    assert "p@v1" in problem
    assert "b@v1" in problem


def test_an_included_variable_has_to_be_declared_by_the_one_that_includes(mistakes):
    (problem,) = mistakes(prompt("{% include 'tone@v1' %}", more=TONE))
    assert problem.endswith("tone@v1 uses the variable 'how', which p@v1 does not declare (add it to variables)")


def test_what_includes_grow_to_is_bounded(mistakes):
    doubled = "".join(
        f"  d{n}: {{current: v, versions: {{v: {{messages: [{{role: user, content: "
        f"\"{{% include 'd{n + 1}@v' %}}{{% include 'd{n + 1}@v' %}}\"}}]}}}}}}\n"
        for n in range(20)
    )
    last = "  d20: {current: v, versions: {v: {messages: [{role: user, content: Hi}]}}}\n"
    problems = mistakes(f"{MODELS}prompts:\n{doubled}{last}")
    assert any("d1@v holds more than 1000000 characters with all that it includes" in each for each in problems)
    assert any("d1@v includes others more than 10 deep" in each for each in problems)


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("  p: {current: v2, versions: {v1: {}}}", "p.current", "there is no version 'v2' (there is v1)"),
        ("  p: {versions: {v1: {}}}", "p.current", "required, but missing (add it)"),
        ("  p: {current: v1, versions: {v1: {}}, tenants: [a]}", "p.tenants[0]", "there is no tenant 'a'"),
        ("  p: {current: v1, versions: {v1: {model: x}}}", "p.versions.v1.model", "there is no model 'x' (there is m)"),
        (
            "  p: {current: v1, versions: {v1: {mesages: []}}}",
            "p.versions.v1.mesages",
            "unknown key (did you mean messa",
        ),
        ("  p@v1: {current: v1, versions: {v1: {}}}", "p@v1", "expected a name of 1 to 64 characters"),
        ("  p: {current: v@1, versions: {v@1: {}}}", "p.versions.v@1", "expected a name of 1 to 64 characters"),
        (
            "  p: {current: v1, versions: {v1: {variables: {x y: 1}}}}",
            "p.versions.v1.variables.x y",
            "expected a name of",
        ),
        (
            "  p: {current: v1, versions: {v1: {variables: {x: {}}}}}",
            "p.versions.v1.variables.x",
            "expected text, a finite num",
        ),
        (
            "  p: {current: v1, versions: {v1: {variables: {x: [.inf]}}}}",
            "p.versions.v1.variables.x",
            "expected text, a finite num",
        ),
        ("  p: {current: v1, versions: {v1: {canon: {shout: apply}}}}", "p.versions.v1.canon", "expected as a rule"),
        (
            "  p: {current: v1, versions: {v1: {idle_ttl_seconds: 0}}}",
            "p.versions.v1.idle_ttl_seconds",
            "expected more",
        ),
        ("  p: {current: v1, versions: {v1: {}}, concurrent: 0}", "p.concurrent", "expected at least 1, got 0"),
        (
            "  p: {current: v1, versions: {v1: {messages: [{role: robot, content: Hi}]}}}",
            "p.versions.v1.messages[0].role",
            "expected system, developer, user, assistant or tool, got 'robot'",
        ),
        ("  p: 3", "p", "expected a mapping (`key: value`), got 3"),
    ],
)
def test_other_mistakes(mistakes, text, place, said):
    (problem,) = mistakes(f"{MODELS}prompts:\n{text}\n")
    assert problem.startswith(f"gateway.yaml:3: prompts.{place}: {said}")


def test_a_file_of_its_own(tmp_path):
    configuration, file = tmp_path / "gateway.yaml", tmp_path / "prompts.yaml"
    configuration.write_text(f"{MODELS}prompts_file: {file}\nprompts:\n{TONE}")

    def problems():
        with pytest.raises(ConfigInvalid) as caught:
            load_settings(configuration, {})
        return caught.value.problems

    assert problems() == [f"{file}: cannot be read: No such file or directory"]
    file.write_text("# later\n")
    assert problems() == [f"{file}:1: the file is empty, expected the key prompts (prompts: {{}} for none)"]
    file.write_text(f"prompts:\n{TONE}")
    (problem,) = problems()
    assert problem.startswith(f"{file}:2: prompts.tone: the configuration has a prompt with this id already")
    file.write_text("prompts:\n  p:\n    current: v\n    versions:\n      v:\n        model: nope\n")
    assert problems() == [f"{file}:6: prompts.p.versions.v.model: there is no model 'nope' (there is m)"]
    included = "{messages: [{role: user, content: \"{% include 'tone@v1' %}\"}], variables: {how: kind}}"
    file.write_text(f"prompts:\n  p: {{current: v, versions: {{v: {included}}}}}\n")
    assert load_settings(configuration, {}).prompts.keys() == {"tone", "p"}
