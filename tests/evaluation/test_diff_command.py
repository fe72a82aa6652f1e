"""``prefix-gateway diff``."""

import argparse
import io
import json
import re
import sys
from pathlib import Path

import fork_server
import pytest
import yaml

from gateway.commands import diff

CAFE = "You are the assistant of a cafe. Be kind, and be brief. Answer questions about the menu and the opening hours."
QUESTION = {"role": "user", "content": "When do you open?"}


def system(text):
    return {"role": "system", "content": text}


def chat(*messages, **fields):
    return {"model": "smollm2", "messages": list(messages), **fields}


def tool(name, **more):
    return {"type": "function", "function": {"name": name, "description": f"The {name} of a day.", **more}}


def run_diff(*arguments):
    parser = argparse.ArgumentParser()
    diff.add_arguments(parser)
    return diff.run(parser.parse_args(list(map(str, arguments))))


@pytest.fixture
def compared(tmp_path, capsys):
    """Runs the command on two bodies; returns the exit code and the result."""

    def run(before, after, *options):
        files = tmp_path / "a.json", tmp_path / "b.json"
        for file, body in zip(files, (before, after), strict=True):
            file.write_text(body if isinstance(body, str) else json.dumps(body))
        code = run_diff(*files, *options)
        reported = capsys.readouterr()
        assert reported.err == ""
        return code, json.loads(reported.out) if "--json" in options else reported.out

    return run


def test_a_time_in_front_is_found_with_its_token_byte_path_cause_and_rule(compared):
    before = chat(system(f"Current time: 2026-04-21 10:02\n{CAFE}"), QUESTION)
    after = chat(system(f"Current time: 2026-04-21 10:07\n{CAFE}"), QUESTION)
    code, found = compared(before, after, "--json")
    assert code == 1
    assert (found["path"], found["line"], found["column"]) == ("messages[0].content", 1, 30)
    assert (found["reason"], found["detail"]) == ("dynamic_time", "iso_datetime")
    assert found["token"]["before"][1] == "2"
    assert found["token"]["after"][1] == "7"
    assert found["byte"] == json.dumps(before).index("10:02") + 4
    assert found["equal_tokens"] == found["token"]["index"]
    assert found["equal_tokens"] + 1 + found["lost_tokens"] == found["tokens"][1]
    # Months later the rule still does what it would have done then.
    assert found["tried_at"] == ["2026-04-21T10:02:00+00:00", "2026-04-21T10:07:00+00:00"]
    assert found["fix"]["rules"] == ["dynamic-suffix"]
    # All of the prompt but the value, which moves behind the question, and the template's end.
    assert found["fix"]["equal_tokens"] > found["tokens"][1] - 20


def test_a_rule_that_would_not_help_as_of_another_time_is_not_proposed(compared):
    before = chat(system(f"Local time: 2026-04-21 10:02\n{CAFE}"), QUESTION)
    after = chat(system(f"Local time: 2026-04-21 10:07\n{CAFE}"), QUESTION)
    code, report = compared(before, after, "--now", "2026-11-23T09:00:00Z")
    assert code == 1
    assert "No rule removes the difference" in report


@pytest.mark.parametrize(
    ("before", "after", "reason", "rules"),
    [
        (chat(system(f"{CAFE}   \n\n\n\nBye."), QUESTION), chat(system(f"{CAFE}\nBye."), QUESTION), "whitespace", None),
        (
            chat(system(CAFE), QUESTION, tools=[tool("hours"), tool("menu")]),
            chat(system(CAFE), QUESTION, tools=[tool("menu"), tool("hours")]),
            "tools_reordered",
            ["tool-order"],
        ),
        (
            chat(system(f"Request id: 8f14e45f-ceea-467f-a8b0-8c2d7c9b1e10\n{CAFE}"), QUESTION),
            chat(system(f"Request id: 3c59dc04-8f8a-4d5b-b8d7-5e0c9d2b7a21\n{CAFE}"), QUESTION),
            "dynamic_id",
            ["dynamic-suffix"],
        ),
        (chat(QUESTION, system(CAFE)), chat(system(CAFE), QUESTION), "role_order", ["role-order"]),
        (
            chat(system("caf\u00e9 " + CAFE), QUESTION),
            chat(system("cafe\u0301 " + CAFE), QUESTION),
            "whitespace",
            ["unicode"],
        ),
    ],
)
def test_causes_and_the_rule_for_each(compared, before, after, reason, rules):
    _, found = compared(before, after, "--json")
    assert found["reason"] == reason
    if rules is not None:
        assert found["fix"]["rules"] == rules
        assert found["fix"]["equal_tokens"] > found["equal_tokens"]


def test_two_faults_are_removed_together(compared):
    tools = [tool("hours"), tool("menu")]
    before = chat(system(f"Current time: 2026-04-21 10:02\n{CAFE}"), QUESTION, tools=tools)
    after = chat(system(f"Current time: 2026-04-21 10:07\n{CAFE}"), QUESTION, tools=tools[::-1])
    _, found = compared(before, after, "--json")
    assert sorted(found["fix"]["rules"]) == ["dynamic-suffix", "tool-order"]
    assert found["fix"]["equal_tokens"] > max(each["equal_tokens"] for each in found["tried"])


def test_an_edit_has_no_rule_and_an_advice(compared):
    code, report = compared(chat(system(CAFE), QUESTION), chat(system(CAFE.replace("brief", "short")), QUESTION))
    assert code == 1
    assert "Cause: System prompt changed (system_changed, edited)" in report
    assert "No rule removes the difference" in report
    assert "roll it out at once" in report


def test_a_rule_that_the_configuration_applies_is_not_advised_again(compared, tmp_path):
    config = tmp_path / "gateway.yaml"
    model = {"id": "smollm2", "replicas": ["http://localhost:1"]}
    config.write_text(yaml.safe_dump({"models": [model], "canon": {"rules": {"dynamic-suffix": "apply"}}}))
    documents = [f'<document id="{n}">The plant number {n} likes water.</document>\nWhich one?' for n in ("17", "42")]
    for role in ("system", "user"):
        before, after = (chat(system(CAFE), {"role": role, "content": text}, QUESTION) for text in documents)
        _, found = compared(before, after, "--json", "--config", config)
        assert "dynamic-suffix: apply" not in found["advice"]
        if role == "user":
            assert "dynamic-suffix" not in found["advice"]


def test_a_question_in_front_of_documents_shows_what_documents_first_would_gain(compared):
    documents = "\n\n".join(f"Document {n}: {CAFE} It has {n} rooms, and a garden with many plants." for n in range(4))
    before, after = (
        chat(system(CAFE), {"role": "user", "content": f"{question}\n\n{documents}"})
        for question in ("Is there a garden behind the house?", "When does the kitchen close on Sundays?")
    )
    _, found = compared(before, after, "--json")
    assert found["detail"] == "question_first"
    _, report = compared(before, after)
    gain = f"With the documents first, up to {found['lost_tokens']:,} tokens more could be reused."
    assert gain in " ".join(report.split())
    assert found["lost_tokens"] > 100


def test_the_order_of_keys_counts_where_the_prompt_shows_it(compared):
    parameters = {"type": "object", "properties": {}, "required": []}
    one = {"name": "menu", "description": "The menu of a day.", "parameters": parameters}
    # Engines write a function's own members in one order, and those of its parameters as they come.
    hidden = dict(reversed(one.items()))
    visible = one | {"parameters": dict(reversed(parameters.items()))}
    bodies = [
        chat(system(CAFE), QUESTION, tools=[{"type": "function", "function": each}]) for each in (one, hidden, visible)
    ]
    code, found = compared(bodies[0], bodies[1], "--json")
    assert (code, found["same"], found["reason"]) == (0, True, "tools_reordered")
    code, found = compared(bodies[0], bodies[2], "--json")
    assert (code, found["path"]) == (1, "tools[0].function.parameters")
    assert found["fix"]["rules"] == ["json-keys"]


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (chat(system(CAFE), QUESTION), "The prompts are the same."),
        (chat(system(CAFE), QUESTION, temperature=0.5), "The requests differ at temperature"),
    ],
)
def test_equal_prompts_end_with_0(compared, after, said):
    code, report = compared(chat(system(CAFE), QUESTION), after)
    assert code == 0
    assert said in report


def test_the_next_turn_of_a_conversation_loses_nothing(compared):
    first = chat(system(CAFE), QUESTION, add_generation_prompt=False)
    more = [{"role": "assistant", "content": "At ten."}, {"role": "user", "content": "And on Monday?"}]
    code, report = compared(first, chat(*first["messages"], *more, add_generation_prompt=False))
    assert code == 0
    assert "The first prompt is the beginning of the second" in report


@pytest.mark.parametrize(
    ("more", "reason", "path"),
    [
        ({"cache_salt": "other"}, "scope_isolated", "cache_salt"),
        ({"prompt_logprobs": 1}, "cache_bypassed", "prompt_logprobs"),
        ({"model": "other"}, "model_changed", "model"),
    ],
)
def test_fields_that_keep_equal_prompts_from_sharing(compared, more, reason, path):
    body = chat(system(CAFE), QUESTION)
    code, found = compared(body, body | more, "--json")
    assert code == 1
    assert (found["reason"], found["path"], found["equal_tokens"]) == (reason, path, 0)
    assert found["lost_tokens"] > 0
    assert found["fix"] is None


def test_completions_are_compared_too(compared):
    code, found = compared({"prompt": "It is 10:02. " + CAFE}, {"prompt": "It is 10:07. " + CAFE}, "--json")
    assert code == 1
    assert found["path"] == "prompt"


def test_the_configuration_gives_tokenizer_rules_and_modes(compared, tmp_path):
    config = tmp_path / "gateway.yaml"
    model = {"id": "smollm2", "tokenizer": "builtin:demo", "replicas": ["http://h"]}
    canon = {"rules": {"pattern": "apply"}, "patterns": [{"name": "run", "regex": r"run \d+", "replacement": "run"}]}
    config.write_text(yaml.safe_dump({"models": [model], "canon": canon}))
    before, after = (chat(system(f"This is run {n}. {CAFE}"), QUESTION) for n in (7001, 8002))
    _, report = compared(before, after, "--config", config)
    assert "Fix: pattern:" in report
    assert "The configuration applies it already." in report


def test_without_a_tokenizer_the_cause_is_still_found(compared, tmp_path):
    config = tmp_path / "gateway.yaml"
    config.write_text(yaml.safe_dump({"models": [{"id": "smollm2", "replicas": ["http://h"]}]}))
    before, after = (chat(system(f"Current time: 2026-04-21 10:0{n}\n{CAFE}"), QUESTION) for n in (2, 7))
    code, found = compared(before, after, "--config", config, "--json")
    assert code == 1
    assert found["tokens"] is None
    assert found["reason"] == "dynamic_time"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("", "{}", "empty; expected the JSON"),
        ('{"messages": [{"role": "user", "content": "x"}]}', '{"prompt": "x"}', "they share no prompt"),
        ('{"prompt": "x"}\n{"prompt": "y"}', '{"prompt": "x"}', "holds 2 requests; expected one"),
        ('{"messages": []}', '{"messages": []}', "not a request that a gateway takes"),
    ],
)
def test_what_cannot_be_compared_ends_with_2(tmp_path, capsys, before, after, said):
    files = tmp_path / "a.json", tmp_path / "b.json"
    for file, text in zip(files, (before, after), strict=True):
        file.write_text(text)
    assert run_diff(*files) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_missing_files_and_two_standard_inputs_end_with_2(tmp_path, capsys):
    assert run_diff(tmp_path / "none", tmp_path / "none") == 2
    assert "cannot be read" in capsys.readouterr().err
    assert run_diff("-", "-") == 2
    assert "cannot both be standard input" in capsys.readouterr().err


def test_one_request_may_come_from_standard_input(tmp_path, capsys, monkeypatch):
    file = tmp_path / "a.json"
    file.write_text(json.dumps(chat(QUESTION)))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert run_diff(file, "-") == 0
    assert "against standard input" in capsys.readouterr().out


def test_help_shows_an_example():
    shown = fork_server.run([sys.executable, "-m", "gateway", "diff", "--help"]).stdout
    assert "prefix-gateway diff monday.json tuesday.json" in shown
    assert "exit code: 0" in shown


def test_the_output_on_the_page_is_what_the_command_prints(tmp_path, capsys, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "diff-command.md").read_text()
    (printed,) = re.findall(
        r"^\$ prefix-gateway diff monday.json tuesday.json\n(.*?)^```", page, re.DOTALL | re.MULTILINE
    )
    monkeypatch.chdir(tmp_path)
    for name, time in (("monday", "2026-11-21 10:02"), ("tuesday", "2026-11-22 09:15")):
        text = json.dumps(f"Current time: {time}\n{CAFE}")
        Path(f"{name}.json").write_text(
            f'{{"model": "smollm2",\n "messages": [\n  {{"role": "system", "content": {text}}},\n'
            '  {"role": "user", "content": "When do you open?"}]}\n'
        )
    assert run_diff("monday.json", "tuesday.json") == 1
    assert capsys.readouterr().out == printed
