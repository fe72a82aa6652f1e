"""``prefix-gateway canon``."""

import argparse
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import fork_server
import pytest

from gateway.canon.rule import Detected, Edit, RuleContext
from gateway.canon.rulebook import Rulebook, rulebook
from gateway.commands import canon
from gateway.commands.printing import WIDTH
from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import OPT_IN, RuleName
from gateway.core.request import Endpoint
from gateway.tokenize.load_tokenizer import load_local

PAGE = Path(__file__).parents[2] / "docs" / "canon-command.md"
QUESTION = {"role": "user", "content": "When do you open?"}
UNTIDY = {"role": "system", "content": "Be kind.   \n\n\n\n\nBe brief."}


def run_canon(*arguments):
    parser = argparse.ArgumentParser()
    canon.add_arguments(parser)
    return canon.run(parser.parse_args(list(map(str, arguments))))


@pytest.fixture
def file(tmp_path):
    def write(*bodies, name="request.json", indent=None):
        path = tmp_path / name
        texts = [body if isinstance(body, str) else json.dumps(body, indent=indent) for body in bodies]
        path.write_text("\n".join(texts), encoding="utf-8")
        return path

    return write


@pytest.fixture
def config(file):
    def write(**more):
        model = {"id": "demo", "tokenizer": "builtin:demo", "replicas": ["http://h"], **more.pop("model", {})}
        return file({"models": [model], **more}, name="gateway.yaml")

    return write


@pytest.fixture
def shown(capsys):
    def run(*arguments):
        assert run_canon(*arguments) == 0
        reported = capsys.readouterr()
        assert reported.err == ""
        assert all(len(line) <= WIDTH for line in reported.out.splitlines()[1:])
        return reported.out

    return run


@pytest.fixture
def document(capsys):
    def run(*arguments):
        assert run_canon("--json", *arguments) == 0
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def refused(capsys):
    def run(*arguments):
        assert run_canon(*arguments) == 2
        reported = capsys.readouterr()
        assert reported.out == ""
        (line,) = reported.err.splitlines()
        return line

    return run


def chat(*messages, **more):
    return {"model": "demo", "messages": list(messages), **more}


def test_what_a_rule_changes_is_shown_with_its_place_texts_and_tokens(shown, file):
    text = shown(file(chat(UNTIDY, QUESTION)), "--rule", "whitespace")
    assert "whitespace   " in text
    assert "  messages[0].content   " in text
    assert ' - "' in text
    assert ' + "\\n"' in text
    assert " tokens\n" in text
    before, after = text.split("The prompt as it would go on: ")
    assert "Nothing to change" not in before
    assert "      Be kind.\n\n      Be brief.\n\n  [1] user\n      When do you open?\n" in after


def test_the_document_holds_everything(document, file):
    found = document(file(chat(UNTIDY, QUESTION, temperature=0.5)))
    (turn,) = found["turns"]
    (rule,) = turn["rules"]
    assert (found["model"], found["tenant"], found["tokenizer"]) == ("demo", "default", "builtin:demo")
    assert rule["rule"] == "whitespace"
    assert (rule["tokens_before"], rule["tokens_after"]) == (turn["tokens_before"], turn["tokens_after"])
    assert turn["tokens_after"] - turn["tokens_before"] == sum(edit["tokens"] for edit in rule["edits"]) < 0
    for edit in rule["edits"]:
        assert edit["path"] == "messages[0].content"
        assert UNTIDY["content"][edit["start"] :].startswith(edit["before"])
        assert len(edit["after"]) < len(edit["before"])
    assert turn["request"] == chat({"role": "system", "content": "Be kind.\n\nBe brief."}, QUESTION, temperature=0.5)
    assert (turn["same_before"], turn["same_after"], turn["context_lost"], turn["cut_messages"]) == (
        None,
        None,
        False,
        0,
    )


def test_tokens_are_those_of_the_whole_prompt(document, file):
    (turn,) = document(file(chat(UNTIDY, QUESTION)))["turns"]
    encoder = load_local("builtin:demo")
    assert turn["tokens_before"] == len(encoder.encode(Endpoint.CHAT, chat(UNTIDY, QUESTION))[0]) // 4
    assert turn["tokens_after"] == len(encoder.encode(Endpoint.CHAT, turn["request"])[0]) // 4


def test_without_a_configuration_the_report_says_what_counted(shown, file):
    text = shown(file(chat(QUESTION)))
    assert "Tokens are counted with the built-in tokenizer (builtin:demo)" in text
    untouched = ", ".join(rule for rule in RuleName if rule not in OPT_IN | {RuleName.HISTORY_TRIM})
    assert f"Nothing to change: {untouched}" in " ".join(text.split()).replace("- ", "-")  # names are broken at dashes
    assert "Off: inner-spaces, dash-style, json-text, system-order. Not tried: history-trim." in " ".join(text.split())
    assert "history-trim goes by how many tokens the model takes: say so with --context-limit" in text


def test_the_page_shows_the_report_of_its_example(shown, file):
    request, report = re.findall(r"```(?:json|console)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[:2]
    command, _, expected = report.partition("\n")
    path = file(request)
    text = shown(path, *command.split()[4:])
    assert text.replace(f"{path}, model", "request.json, model") == expected, "docs/canon-command.md"


def test_rules_go_one_after_the_other(document, file):
    # Only where the first has put the letter together is there nothing unusual left for a pattern to find.
    tools = [{"type": "function", "function": {"name": name}} for name in ("b", "a")]
    found = document(file(chat({"role": "system", "content": "cafe\u0301  \nx"}, QUESTION, tools=tools)))
    (turn,) = found["turns"]
    assert [rule["rule"] for rule in turn["rules"]] == ["unicode", "whitespace", "tool-order"]
    counts = [turn["tokens_before"], *(rule["tokens_after"] for rule in turn["rules"])]
    assert [rule["tokens_before"] for rule in turn["rules"]] == counts[:-1]
    assert counts[-1] == turn["tokens_after"]
    assert turn["request"]["messages"][0]["content"] == "caf\u00e9\nx"


def test_what_looks_the_same_is_distinguished(shown, file):
    text = shown(file(chat({"role": "user", "content": "cafe\u0301 \u2066x\u200b\x1b[31m"})))
    assert '- "e\\u0301"' in text
    assert '+ "\\u00e9"' in text
    assert "caf\u00e9 \\u2066x\\u001b[31m" in text
    assert text.isprintable() or set(text) - {"\n"} == {char for char in text if char.isprintable()}


def test_long_pieces_are_cut_into_lines_and_nothing_is_left_out(shown, file, config):
    value = "".join(f'word{n}"\t' for n in range(200))
    patterns = [{"name": "value", "regex": "^Value: .+$", "replacement": "Gone."}]
    text = shown(
        file(chat({"role": "system", "content": f"Value: {value}end\nBe kind."}, QUESTION)),
        *("--config", config(canon={"patterns": patterns})),
    )
    removed = [line.strip().removeprefix('- "')[:-1] for line in text.splitlines() if line.startswith("    - ")]
    assert len(removed) > 20
    # Every line is a JSON string of its own.
    assert "".join(json.loads(f'"{piece}"') for piece in removed) == f"Value: {value}end"
    assert '    + "Gone."' in text


def test_changed_lists_are_shown_as_what_differs(shown, file):
    tools = [{"type": "function", "function": {"name": name, "description": f"Does {name}."}} for name in "bac"]
    text = shown(file(chat(QUESTION, tools=tools)), "--rule", "tool-order")
    removed = [line[6:].strip() for line in text.splitlines() if line.startswith("    - ")]
    added = [line[6:].strip() for line in text.splitlines() if line.startswith("    + ")]
    assert sorted(removed) == sorted(added)
    assert any('"name": ' in line for line in added)
    assert "Does c." not in text
    assert "  tools: a, b, c\n" in text


def test_history_trim_is_tried_where_the_limit_is_given(shown, document, file):
    messages = [{"role": role, "content": f"{n} word" * 40} for n in range(9) for role in ("user", "assistant")]
    path = file(chat(*messages, max_tokens=50))
    (turn,) = document(path, "--context-limit", 600)["turns"]
    assert turn["cut_messages"] > 0
    assert turn["request"]["messages"] == messages[turn["cut_messages"] :]
    assert turn["tokens_after"] < 500 < turn["tokens_before"]
    text = shown(path, "--context-limit", 600)
    assert f"{turn['cut_messages']} messages left out" in text
    assert "--context-limit to try it" not in text


def test_as_much_is_cut_as_the_gateway_cuts(document, file):
    messages = [{"role": role, "content": f"{n} word" * 40} for n in range(9) for role in ("user", "assistant")]
    path = file(chat({"role": "system", "content": "Local time: 2026-11-21 10:02\nBe kind."}, *messages, max_tokens=50))
    fields = json.loads(path.read_text())
    cuts = set()
    for names in ((RuleName.HISTORY_TRIM,), (RuleName.HISTORY_TRIM, RuleName.DYNAMIC_SUFFIX)):
        for limit in (300, 600, 900, 1200):
            chosen = [each for name in names for each in ("--rule", name.value)]
            (turn,) = document(path, "--context-limit", limit, "--now", "2026-11-21T10:05:00Z", *chosen)["turns"]
            encoder = load_local("builtin:demo")
            given = RuleContext(
                1795255500.0,
                recall=lambda key: None,
                count_tokens=lambda text, encoder=encoder: len(encoder.encode_text(text)) // 4,
                context_limit=limit,
            )
            sent = rulebook(CanonSettings()).canonical(fields, names, given)
            assert (turn["cut_messages"], turn["context_lost"]) == (sent.cut_messages, sent.context_lost)
            assert turn["request"]["messages"] == sent.fields["messages"]
            cuts.add((limit, turn["cut_messages"]))
    # The room for blocks makes a difference.
    assert len(cuts) > 4


class Numbers:
    """Moves the number in the first message behind the last one, and puts back what it moved in turns before."""

    name: ClassVar[RuleName] = RuleName.DYNAMIC_SUFFIX

    def detect(self, fields, given):
        messages = fields["messages"]
        digits = "".join(filter(str.isdigit, messages[0]["content"]))
        if not digits:
            return Detected()
        path = ("messages", 0, "content")
        edits = [Edit(self.name, "moved", path, digits, "N", messages[0]["content"].index(digits))]
        lost = False
        for number, message in enumerate(messages[1:], 1):
            key = f"{given.owner}{number}{message['content']}".encode()
            block = f" ({digits})" if number == len(messages) - 1 else given.recall(key)
            lost = lost or (block is None and message["role"] == "user")
            if block is not None:
                edits.append(
                    Edit(self.name, "block", ("messages", number, "content"), "", block, len(message["content"]))
                )
        return Detected(edits, {key: block}, lost)


@pytest.fixture
def turns(file, monkeypatch):
    monkeypatch.setattr(canon, "rulebook", lambda settings: Rulebook([Numbers()]))
    rest = "You are the assistant of a cafe, and answer questions about its menu and its opening hours. " * 3
    bodies, history = [], []
    for number, question in enumerate(["When do you open?", "When do you close?", "Is there cake?"]):
        history = [*history, {"role": "user", "content": question}]
        bodies.append(chat({"role": "system", "content": f"Ticket {41 + 7 * number}. {rest}"}, *history))
        history = [*history, {"role": "assistant", "content": "Ask me tomorrow."}]
    return file(*bodies, name="turns.jsonl")


def test_turns_remember_what_was_put_behind_the_ones_before(document, turns):
    first, second, third = document(turns)["turns"]
    contents = [message["content"] for message in third["request"]["messages"]]
    assert contents[0].startswith("Ticket N. ")
    assert [text[-4:] for text in contents[1::2]] == ["(41)", "(48)", "(55)"]
    assert not third["context_lost"]
    # Without the rules nothing behind the number is the same; with them all that stood there, but for the mark that
    # the answer begins.
    for before, now in ((first, second), (second, third)):
        assert now["same_before"] < 10
        assert now["same_after"] >= before["tokens_after"] - 1


def test_turns_are_printed_with_what_they_share(shown, document, turns):
    text = shown(turns)
    first, second, third = document(turns)["turns"]
    table = [line.split() for line in text.split("from the first one on\n")[1].splitlines()]
    assert table[1] == f"1 {first['tokens_before']} tokens {first['tokens_after']} tokens".split()
    share = 100 * third["same_after"] // third["tokens_after"]
    reported = f"{third['same_after']} of {third['tokens_after']} ({share} %)"
    assert " ".join(table[3]).endswith(reported)
    new = sum(turn["tokens_after"] - (turn["same_after"] or 0) for turn in (first, second, third))
    assert " ".join(table[4]).endswith(f"{new} tokens in all turns")
    assert "Turn 2 of 3\n" in text
    # Only the last turn's prompt is printed: it holds the others.
    assert text.count("The prompt as it would go on") == 1
    assert "      Is there cake? (55)\n" in text


def test_the_time_of_every_turn_costs_nothing_but_itself(document, file):
    rest = "You are the assistant of a cafe. Answer questions about its menu and its opening hours. " * 3
    bodies, history = [], []
    for minute, question in enumerate(["When do you open?", "When do you close?", "Is there cake?"]):
        history = [*history, {"role": "user", "content": question}]
        bodies.append(
            chat({"role": "system", "content": f"Local time: 2026-11-21 10:0{minute}\n{rest.strip()}"}, *history)
        )
        history = [*history, {"role": "assistant", "content": "Ask me tomorrow."}]
    path = file(*bodies, name="turns.jsonl")
    _, second, third = document(path, "--now", "2026-11-21T10:05:00Z")["turns"]
    assert third["same_before"] < 40
    assert third["same_after"] >= second["tokens_after"] - 1
    assert [rule["rule"] for rule in third["rules"]] == ["dynamic-suffix"]
    # A month later, a line that may name any date is not about now.
    assert document(path, "--now", "2026-12-21T10:05:00Z")["turns"][2]["rules"] == []


def test_a_turn_from_the_middle_is_said_to_miss_its_blocks(shown, document, turns, file):
    last = turns.read_text().splitlines()[-1]
    path = file(last)
    assert document(path)["turns"][0]["context_lost"]
    assert "Blocks of earlier turns would stand in this conversation" in shown(path)


def test_modes_come_from_the_configuration(document, shown, file, config):
    path = file(chat(UNTIDY, QUESTION, tools=[{"type": "function", "function": {"name": n}} for n in "ba"]))
    settings = config(canon={"rules": {"tool-order": "off"}}, model={"canon": {"whitespace": "apply"}})
    found = document(path, "--config", settings)
    assert found["modes"] | {"whitespace": "apply", "tool-order": "off", "unicode": "observe"} == found["modes"]
    assert [(rule["rule"], rule["mode"]) for rule in found["turns"][0]["rules"]] == [("whitespace", "apply")]
    text = shown(path, "--config", settings)
    assert "whitespace (apply)   " in text
    assert "Off: inner-spaces, dash-style, json-text, system-order, tool-order." in text
    assert "Tokens are counted with builtin:demo." in text
    # Asked for by its name, a rule that is off is tried, too.
    found = document(path, "--config", settings, "--rule", "tool-order")
    assert [rule["rule"] for rule in found["turns"][0]["rules"]] == ["tool-order"]


def test_a_tenants_modes_go_first(document, file, config):
    path = file(chat(UNTIDY, QUESTION))
    keys = {"keys": [{"hash": "sha256:" + "0" * 64}]}
    settings = config(
        tenants=[{"id": "acme", "canon": {"whitespace": "off"}, **keys}],
        spaces={"secret": "0" * 64},
        canon={"rules": {"whitespace": "apply"}},
    )
    assert [rule["rule"] for rule in document(path, "--config", settings)["turns"][0]["rules"]] == ["whitespace"]
    found = document(path, "--config", settings, "--tenant", "acme")
    assert (found["tenant"], found["modes"]["whitespace"], found["turns"][0]["rules"]) == ("acme", "off", [])


def test_hints_are_taken_out_as_configured(document, shown, file, config):
    body = chat({**QUESTION, "cache_control": {"type": "ephemeral"}}, prompt_cache_key="k")
    settings = config(canon={"cache_control": "strip", "prompt_cache_key": "strip"})
    (turn,) = document(file(body), "--config", settings)["turns"]
    assert turn["request"] == chat(QUESTION)
    assert [rule["rule"] for rule in turn["rules"]] == ["hints"]
    assert "Taken out as the configuration says" in shown(file(body), "--config", settings)


@pytest.mark.parametrize("tokenizer", ["engine", "/no/such/folder"])
def test_without_a_tokenizer_everything_but_the_tokens_is_shown(document, shown, file, config, tokenizer):
    path = file(chat(UNTIDY, QUESTION))
    settings = config(model={"tokenizer": tokenizer})
    found = document(path, "--config", settings)
    (turn,) = found["turns"]
    assert (found["tokenizer"], turn["tokens_before"], turn["tokens_after"]) == (None, None, None)
    assert [rule["rule"] for rule in turn["rules"]] == ["whitespace"]
    text = shown(path, "--config", settings)
    assert "No tokens are counted: " in text
    assert "whitespace (observe)\n" in text


def test_pictures_have_no_tokens_here_and_are_not_printed_whole(document, shown, file):
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}}
    path = file(chat({"role": "user", "content": [{"type": "text", "text": "What is it?  \n"}, picture]}))
    found = document(path)
    assert found["turns"][0]["tokens_after"] is None
    assert any("Not all tokens could be counted: " in note for note in found["notes"])
    assert found["turns"][0]["request"]["messages"][0]["content"][1] == picture
    text = shown(path)
    assert len(text) < 2500
    assert "(5,0" in text


def test_completions_are_shown_too(document, shown, file):
    path = file({"prompt": "Once upon   \n\n\n\n\na time"})
    found = document(path)
    assert (found["model"], found["turns"][0]["request"]) == (None, {"prompt": "Once upon\n\na time"})
    assert "      Once upon\n\n      a time\n" in shown(path)


def test_a_body_may_have_any_layout(document, file):
    for indent in (None, 2):
        (turn,) = document(file(chat(UNTIDY, QUESTION), indent=indent))["turns"]
        assert turn["rules"]
    (turn,) = document(file("\ufeff" + json.dumps(chat(QUESTION))))["turns"]
    assert turn["request"] == chat(QUESTION)


def test_standard_input_is_read(document, monkeypatch):
    body = json.dumps(chat(UNTIDY, QUESTION)).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body)))
    found = document("-")
    assert found["file"] == "standard input"
    assert len(found["turns"]) == 1


MESSAGES = '"messages": [{"role": "user", "content": "Hi"}]'


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "empty; expected the JSON of a request to /v1/chat/completions"),
        ("{", "not valid JSON: "),
        ("[]", "not a request: expected a JSON object with `messages`"),
        ('{"input": "Hi"}', "not a request: expected a JSON object with `messages`"),
        ('{"messages": []}', "not a request that a gateway takes: `messages` is empty"),
        ('{"messages": [{"content": "x"}]}', "`messages[0].role` must be a string"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "half of a surrogate pair"),
        ('{"model": 5, ' + MESSAGES + "}", "`model` must be a string"),
        ('{"messages": ' + "[" * 5000 + "]" * 5000 + "}", "nested"),
    ],
)
def test_what_is_no_request_is_named(refused, file, text, reported):
    path = file(text)
    line = refused(path)
    assert line.startswith(f"{path}: ")
    assert reported in line


def test_in_a_file_of_turns_the_line_is_named(refused, file):
    path = file(chat(QUESTION), "", '{"messages": 5}', name="turns.jsonl")
    assert refused(path).startswith(f"{path}:3: not a request that a gateway takes: `messages` must be a list")
    path = file(chat(QUESTION), "{", name="turns.jsonl")
    assert refused(path).startswith(f"{path}:2: not valid JSON: ")


def test_files_that_cannot_be_read_are_named(refused, tmp_path, file):
    assert refused(tmp_path / "none.json") == f"{tmp_path}/none.json: cannot be read: No such file or directory"
    (tmp_path / "latin").write_bytes(b'{"messages": "\xe4"}')
    assert refused(tmp_path / "latin") == f"{tmp_path}/latin: not UTF-8: invalid byte at offset 14"
    path = file(chat(QUESTION))
    assert f"{tmp_path}/none.yaml" in refused(path, "--config", tmp_path / "none.yaml")


def test_unknown_models_and_tenants_are_named(refused, file, config):
    path = file(chat(QUESTION))
    two = config(model={"id": "one"})
    assert refused(path, "--config", two) == ("the configuration has no model 'demo': choose with --model one of one")
    assert "no model 'x'" in refused(path, "--config", config(), "--model", "x")
    assert refused(path, "--config", config(), "--tenant", "acme") == (
        "the configuration has no tenant 'acme'; its tenants: none"
    )


def test_a_request_without_a_model_is_for_the_only_one(document, file, config):
    path = file({"messages": [QUESTION]})
    assert document(path, "--config", config())["model"] == "demo"


@pytest.mark.parametrize(
    "arguments", [["--rule", "rule-order"], ["--now", "ten"], ["--context-limit", "0"], ["--context-limit", "many"]]
)
def test_bad_usage(arguments, file, capsys):
    with pytest.raises(SystemExit) as ended:
        run_canon(file(chat(QUESTION)), *arguments)
    assert ended.value.code == 2
    assert "error: argument" in capsys.readouterr().err


@pytest.mark.parametrize("time", ["2026-11-21T10:05:00Z", "2026-11-21T11:05:00+01:00", "2026-11-21 10:05"])
def test_times_without_a_zone_are_utc(time):
    parser = argparse.ArgumentParser()
    canon.add_arguments(parser)
    assert parser.parse_args(["f", "--now", time]).now == 1795255500


def test_help_shows_an_example():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    canon.add_arguments(parser)
    assert "prefix-gateway canon turns.jsonl --config config/gateway.yaml" in parser.format_help()


def test_a_reader_may_stop_early(file):
    path = file(chat(*[UNTIDY, QUESTION] * 400))
    with fork_server.launch(
        [sys.executable, "-m", "gateway", "canon", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as shown:
        shown.stdout.readline()
        shown.stdout.close()
        assert shown.stderr.read() == b""
        assert shown.wait(60) == 0


def test_values_that_are_not_moved_are_reported_with_the_reason(shown, document, file):
    old = {"role": "system", "content": "Server time: 2026-05-04 10:00\nBe kind."}
    request = file(chat(old, QUESTION))
    report = shown(request, "--now", "2026-11-23T10:00:00Z")
    assert "not moved, although it looks like a value that changes" in report
    assert '  messages[0].content, line 1   "2026-05-04 10:00"\n    a time 203 days before now is not taken' in report
    (miss,) = document(request, "--now", "2026-11-23T10:00:00Z")["turns"][0]["near_misses"]
    assert (miss["kind"], miss["reason"], miss["start"]) == ("time", "far", 13)
    assert "not moved" not in shown(request, "--now", "2026-05-04T10:00:00Z")
    assert "not moved" not in shown(request, "--now", "2026-11-23T10:00:00Z", "--rule", "whitespace")
