"""``prefix-gateway analyze``: its reports, its trace, and what it says about bad input."""

import argparse
import gzip
import html.parser
import json
import subprocess
import sys

import pytest
from planted_logs import lines, support_log, timed_log

from gateway.commands import analyze
from gateway.evaluation.workload_trace import TraceReader

SECTIONS = (
    *("What was read", "What repeats", "Lengths", "When it repeats", "Why the rest is computed", "Applications"),
    *("Canonicalization", "Personal data in prefixes", "A configuration to start with"),
)


def run_analyze(*arguments):
    parser = argparse.ArgumentParser()
    analyze.add_arguments(parser)
    return analyze.run(parser.parse_args(["--replicas", "0", *map(str, arguments)]))


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "requests.jsonl"
    path.write_text(lines([*support_log(), *timed_log()]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def written(log):
    folder = log.parent
    report = folder / "report.html", folder / "report.md", folder / "trace.jsonl"
    assert run_analyze(log, "--html", report[0], "--markdown", report[1], "--anonymize", report[2]) == 0
    return report


def test_the_terminal_report(log, capsys):
    assert run_analyze(log) == 0
    reported = capsys.readouterr()
    assert reported.err == ""
    assert reported.out.startswith(("Start with support-chat: ", "Align formats first: "))
    for title in SECTIONS:
        assert f"\n{title}\n" in reported.out
    assert all(line == line.rstrip() for line in reported.out.splitlines())


def test_json(log, capsys):
    assert run_analyze(log, "--json", "--no-rules") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"]["kind"] in ("start_with", "align_first")
    assert document["requests"] == document["read"]["requests"] == 100
    assert document["rules"] == []
    missed = sum(each["tokens"] for each in document["reasons"])
    assert missed + document["ideal"]["tokens"] == document["prompt_tokens"]


def test_markdown(written):
    text = written[1].read_text(encoding="utf-8")
    assert text.startswith("# Prefix analysis\n\n**")
    for title in SECTIONS:
        assert f"\n## {title}\n" in text
    assert "```yaml\n" in text


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags = []
        self.links = []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]


def test_html_is_one_file_with_plots_and_no_scripts(written):
    text = written[0].read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.tags.count("svg") >= 3
    assert "script" not in page.tags
    assert page.links == []
    assert "prefers-color-scheme: dark" in text
    assert "url(" not in text


def test_html_escapes_what_a_log_names(tmp_path):
    entries = [each | {"headers": {}, "app": "x"} for each in support_log(10)]
    for each in entries:
        each["request"]["messages"][0]["content"] = "<script>alert(1)</script> & more words of a prompt"
    log = tmp_path / "<b>.jsonl"
    log.write_text(lines(entries))
    page = tmp_path / "page.html"
    assert run_analyze(log, "--html", page) == 0
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "<b>" not in text
    assert "&lt;b&gt;.jsonl" in text


def test_the_trace_has_no_text_and_ids_in_order(written, log):
    data = written[2].read_bytes()
    assert b"support" not in data
    with written[2].open("rb") as source:
        reader = TraceReader(source, "trace")
        requests = list(reader)
    assert len(requests) == 100
    seen = -1
    for request in requests:
        for number in request.blocks:
            assert number <= seen + 1
            seen = max(seen, number)
    first = [request.blocks[0] for request in requests]
    assert first.count(first[0]) == 36


def test_standard_input_packed(log):
    command = [sys.executable, "-m", "gateway", "analyze", "-", "--json", "--replicas", "0"]
    packed = gzip.compress(log.read_bytes())
    found = subprocess.run(command, input=packed, capture_output=True, check=True)
    assert json.loads(found.stdout)["requests"] == 100
    assert found.stderr == b""


def test_a_closed_output_is_no_error(log):
    command = f"{sys.executable} -m gateway analyze {log} --no-rules --replicas 0 | head -1"
    found = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert len(found.stdout.splitlines()) == 1
    assert found.stderr == ""


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("", (), "x.log: empty; expected recorded requests, one a line"),
        ("a,b\n", (), "x.log: no log of requests: its first 1 lines are neither"),
        ('{"request_method": "POST", "uri": "/v1/chat/completions", "status": 200}\n', (), "$request_body"),
        ('{"prompt": "x"}\n', ("--tokenizer", "builtin:none"), "the tokenizer builtin:none cannot be loaded"),
        ('{"prompt": "x"}\n', ("--config", "none.yaml"), "none.yaml"),
        ('{"prompt": "x"}\n', ("--model", "m"), "--model names a model of a configuration: give one with --config"),
        ('{"prompt": "x"}\n', ("--html", "/none/report.html"), "/none/report.html: cannot be written"),
        ('{"prompt": "x"}\n', ("--anonymize", "/none/trace"), "/none/trace: cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, capsys, content, arguments, message):
    log = tmp_path / "x.log"
    log.write_text(content)
    assert run_analyze(log, *arguments) == 2
    reported = capsys.readouterr()
    assert reported.out == ""
    assert reported.err.startswith("prefix-gateway analyze: ")
    assert message in reported.err
    assert len(reported.err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [("--replicas", "x"), ("--cache-tokens", "0"), ("--long", "-1"), ()])
def test_bad_usage(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        run_analyze(*arguments)
    assert ended.value.code == 2
