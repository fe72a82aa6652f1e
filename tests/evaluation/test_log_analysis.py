"""Planted shares come out of an analysis, with the right reasons, rules and verdict."""

import json

import pytest
from planted_logs import BEGAN, chat, entry, lines, support_log, timed_log, tokens, unique_log, words

from gateway.config.settings import load_settings
from gateway.evaluation.analysis.analysis_options import configured_options, default_options
from gateway.evaluation.analysis.analysis_report import report_of
from gateway.evaluation.analysis.log_pipeline import SimulatedFleets, analyze_logs
from gateway.evaluation.analysis.report_parts import Listing, Paragraph

NO_FLEETS = SimulatedFleets((), ())
WITHIN = 0.02


@pytest.fixture
def analyzed(tmp_path):
    def run(*logs, options=None, fleets=NO_FLEETS):
        paths = []
        for number, entries in enumerate(logs):
            path = tmp_path / f"log-{number}.jsonl"
            path.write_text(lines(entries), encoding="utf-8")
            paths.append(str(path))
        return analyze_logs(paths, options or default_options(None), fleets=fleets)

    return run


def by_code(analysis):
    return {each.code: each.share for each in analysis.reasons}


def test_a_planted_share_is_found(analyzed):
    entries = list(support_log())
    shared = [each["request"] for each in entries if each["headers"]["x-client"] == "support-chat"]
    system = tokens({"model": "m", "messages": [shared[0]["messages"][0]]})
    total = sum(tokens(each["request"]) for each in entries)
    planted = system * (len(shared) - 1) / total

    analysis = analyzed(entries)
    assert analysis.requests == len(entries)
    assert analysis.prompt_tokens == total
    assert analysis.ideal.share == pytest.approx(planted, abs=WITHIN)
    assert analysis.behind_changes.share < WITHIN
    own = sum(map(tokens, shared))
    (support,) = [each for each in analysis.applications if each.name == "support-chat"]
    assert support.hit_rate == pytest.approx(system * (len(shared) - 1) / own, abs=WITHIN)
    assert support.share == pytest.approx(own / total, abs=0.001)
    percent = f"{100 * support.hit_rate:.0f} %"
    assert analysis.verdict.kind == "start_with"
    assert analysis.verdict.sentence.startswith(f"Start with support-chat: {percent} of its prefill repeats")


def test_a_planted_share_of_token_ids_is_exact(analyzed):
    shared = list(range(1000, 1000 + 1024))

    def body(number):
        own = [50_000 + 600 * number + at for at in range(512)]
        return {"model": "m", "prompt": (shared if number % 2 else own) + own}

    analysis = analyzed([entry(body(number), BEGAN + number) for number in range(40)])
    total = 20 * (1024 + 512) + 20 * 1024
    assert analysis.prompt_tokens == total
    assert analysis.ideal.tokens == 19 * 1024
    assert analysis.long_prefixes == pytest.approx(19 / 40)
    assert analysis.long_prefix_tokens == pytest.approx(19 * 1024 / total, abs=1e-5)


def test_nothing_to_gain_is_said(analyzed):
    analysis = analyzed(unique_log())
    assert analysis.verdict.kind == "little_to_gain"
    assert analysis.verdict.sentence.startswith("Little to gain: ")
    assert analysis.ideal.share < WITHIN
    assert by_code(analysis)["first_seen"] > 0.9


def test_a_time_in_front_is_found_and_the_rule_for_it(analyzed):
    entries = list(timed_log())
    rules = tokens({"model": "m", "messages": [entries[0]["request"]["messages"][0]]})
    total = sum(tokens(each["request"]) for each in entries)
    planted = (len(entries) - 1) * rules / total

    analysis = analyzed(entries)
    found = by_code(analysis)
    assert found["dynamic_time"] + analysis.ideal.share == pytest.approx(planted, abs=WITHIN)
    assert analysis.verdict.kind == "align_first"
    assert "Align formats first" in analysis.verdict.sentence
    assert "messages[0].content" in analysis.verdict.sentence
    gain = {each.rule: each.points for each in analysis.rules}
    assert gain["dynamic-suffix"] == pytest.approx(100 * found["dynamic_time"], abs=3)
    assert analysis.findings[0]["reason"] == "dynamic_time"
    assert analysis.findings[0]["example"].endswith("log-0.jsonl:40")
    assert "dynamic-suffix: observe" in analysis.configuration


def test_clients_that_format_the_same_content_differently(analyzed):
    system = "You plan trips.\n" + words("trips", 400)
    other = system.replace("You plan trips.\n", "You plan trips.  \n\n\n\n")

    def entries():
        for number in range(30):
            source, text = ("ios", system) if number % 2 else ("android", other)
            yield entry(chat(text, words(("q", number), 30)), BEGAN + 7 * number, source)

    analysis = analyzed(entries())
    (family,) = analysis.families
    assert {family["source"], family["than"]} == {"ios", "android"}
    assert family["difference"]["reason"] == "whitespace"
    assert family["requests"] == 15
    assert {each.rule: each.requests for each in analysis.rules}["whitespace"] == 15


def test_documents_in_another_order_come_with_a_declaration_to_copy(analyzed, tmp_path):
    documents = [f'<document id="{n}">\n{words(("plants", n), 120)}\n</document>' for n in range(4)]

    def entries():
        for number in range(12):
            turned = documents[number % 4 :] + documents[: number % 4]
            yield entry(chat("\n".join(turned), words(("q", number), 10)), BEGAN + number)

    def reported(analysis):
        (section,) = (each for each in report_of(analysis).sections if each.title == "Canonicalization")
        return [part.text for part in section.parts if isinstance(part, Paragraph | Listing)]

    analysis = analyzed(entries())
    assert by_code(analysis)["documents_reordered"] > 0.1
    said = reported(analysis)
    assert any(line.startswith("document-order: nothing is declared (canon.document_order.documents)") for line in said)
    assert any("inner-spaces, dash-style, json-text, system-order are not tried" in line for line in said)
    assert not any("document-order" in line for line in said if line.startswith("Nothing to change"))
    (declaration,) = (line for line in said if line.startswith("canon:"))

    config = tmp_path / "gateway.yaml"
    config.write_text(
        "models: [{id: m, replicas: ['http://h:1'], tokenizer: 'builtin:demo'}]\n" + declaration, encoding="utf-8"
    )
    declared = analyzed(entries(), options=configured_options(load_settings(config), tokenizer=None, model=None))
    assert declared.undeclared == ["pattern"]
    assert {each.rule: each.points for each in declared.rules}["document-order"] > 10
    assert not any(line.startswith("canon:") for line in reported(declared))


def test_families_are_summed_over_hours(analyzed):
    rules = words("trips", 200)

    def entries():
        for number in range(46):
            source, system = ("ios", rules) if number % 2 else ("android", f"Speak plainly, as always. {rules}")
            yield entry(chat(system, words(("q", number), 10)), BEGAN + 600 * number, source)

    (family,) = analyzed(entries()).families
    assert (family["source"], family["than"]) in (("ios", "android"), ("android", "ios"))
    assert family["difference"]["reason"] == "system_changed"
    assert family["requests"] == 22  # in each hour those of the family with fewer


def test_personal_data_in_a_shared_prefix(analyzed):
    system = "You help. Write to anna.schmidt@shop-mail.com for refunds. " + words("pii", 100)
    entries = [entry(chat(system, words(("q", number), 20)), BEGAN + number, "help") for number in range(20)]
    (found,) = analyzed(entries).personal_data
    assert (found["kind"], found["path"], found["source"]) == ("email", "messages[0].content", "help")
    assert found["shared"]
    assert found["requests"] == 20


def test_repeat_intervals_against_times_to_live(analyzed):
    prompt = [7] * 1025
    times = [0, 100, 100 + 1800, 100 + 1800 + 7200]
    analysis = analyzed([entry({"model": "m", "prompt": prompt}, BEGAN + at) for at in times])
    assert [(each.seconds, each.share) for each in analysis.intervals] == [
        (300, pytest.approx(1 / 3, abs=1e-5)),
        (3600, pytest.approx(2 / 3, abs=1e-5)),
        (86400, 1),
    ]
    assert "idle_ttl_seconds: 86400" in analysis.configuration


def test_reported_hits_stand_beside_the_ideal(analyzed):
    prompt = [7] * 1024
    usage = {"prompt_tokens": 1024, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 256}}
    entries = [
        entry({"model": "m", "prompt": prompt}, BEGAN + number, response={"usage": usage}) for number in range(10)
    ]
    analysis = analyzed([*entries, entry({"model": "m", "prompt": prompt}, BEGAN + 20)])
    assert analysis.reported.requests == 10
    assert analysis.reported.hit_rate == 0.25
    assert analysis.reported.ideal_hit_rate == pytest.approx(9 * 1008 / 10240, abs=1e-4)


def test_the_answer_is_in_the_cache_for_the_next_turn(analyzed):
    answer = words("answer", 300)
    first = chat("", "Tell me.")
    second = {"model": "m", "messages": [*first["messages"], {"role": "assistant", "content": answer}]}
    second["messages"].append({"role": "user", "content": "Go on."})
    reply = {"choices": [{"message": {"role": "assistant", "content": answer}}]}

    def hits(**more):
        return analyzed([entry(first, BEGAN, **more), entry(second, BEGAN + 9)]).ideal.tokens

    assert hits() < 50
    assert hits(response=reply) > 300


def test_expected_hit_rates_grow_with_the_cache(analyzed):
    systems = [words(("system", number), 500) for number in range(7)]
    entries = [
        entry(chat(systems[number % 7], words(("q", number), 20)), BEGAN + 5 * number, f"app-{number % 7}")
        for number in range(80)
    ]
    analysis = analyzed(entries, fleets=SimulatedFleets((1, 4), (1500, 100_000)))
    rates = {(each.replicas, each.cache_tokens): each.by_policy for each in analysis.expected}
    ideal = analysis.ideal.share
    assert rates[1, 100_000]["expected_ttft"] == pytest.approx(ideal, abs=0.03)
    assert rates[4, 100_000]["expected_ttft"] == pytest.approx(ideal, abs=0.03)
    assert rates[4, 100_000]["round_robin"] < ideal - 0.1
    assert rates[1, 1500]["expected_ttft"] < 0.1


def test_tenants_share_nothing_where_the_configuration_isolates_them(analyzed, tmp_path):
    config = tmp_path / "gateway.yaml"
    model = {"id": "m", "tokenizer": "builtin:demo", "replicas": ["http://h"]}
    spaces = {"isolation": "tenant", "secret": "x" * 32}
    config.write_text(json.dumps({"models": [model], "spaces": spaces}))
    options = configured_options(load_settings(config), tokenizer=None, model=None)
    prompt = {"model": "m", "prompt": [7] * 1024}
    entries = [entry(prompt, BEGAN + number, tenant=f"t{number % 2}") for number in range(4)]
    assert analyzed(entries).ideal.tokens == 3 * 1008
    isolated = analyzed(entries, options=options)
    assert isolated.ideal.tokens == 2 * 1008
    assert by_code(isolated)["tenant_isolated"] == pytest.approx(1008 / 4096, abs=1e-5)


def test_requests_that_a_gateway_refuses_are_counted(analyzed):
    bad = {"model": "m", "messages": [{"role": "user", "content": 5}]}
    analysis = analyzed([entry(bad, BEGAN), entry(chat("", "Hi"), BEGAN)])
    assert (analysis.requests, analysis.read.requests, analysis.read.unreadable) == (1, 1, 1)
    assert "refuses" in analysis.read.unreadable_reasons[0]["reason"]


def test_media_and_requests_without_a_model_are_estimated(analyzed):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": words("image", 90)}, image]}]}
    analysis = analyzed([entry(body, BEGAN + number) for number in range(3)])
    assert analysis.ideal.share > 0.5
    assert any("tokens are estimated" in note for note in analysis.read.notes)


@pytest.mark.parametrize("log", [support_log, timed_log, unique_log])
def test_the_starting_configuration_is_valid(analyzed, tmp_path, log):
    config = tmp_path / "start.yaml"
    config.write_text(analyzed(log()).configuration)
    assert load_settings(config).models[0].id == "m"


def test_a_long_log_is_explained_in_another_process(analyzed, monkeypatch):
    alone = analyzed(support_log())
    monkeypatch.setattr("gateway.evaluation.analysis.log_pipeline._SHORT_BYTES", 0)
    assert analyzed(support_log()) == alone
