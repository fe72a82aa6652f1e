"""The reference of reasons and of the admin port say what the code does."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from answered_requests import answered
from starlette.routing import Route

from docs.generate.reasons_page import page
from gateway.admin import AdminAccess, AdminState
from gateway.admin.admin_app import build_admin
from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import EditShown, RuleMode, RuleOutcome
from gateway.core.explanation import Attribution, Difference, Explanation, ReferenceShown, SpaceKey, VaryingSlot
from gateway.core.reasons import REASONS, Reason, Remedy, Rung
from gateway.stats import Stats
from gateway.stats.markers import Marker, MarkerKind
from gateway.telemetry import MetricCatalog, MetricsObserver

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
NOON = 1_795_262_400.0
ADDED_BY_THE_GATEWAY = ".difference.tokens"
EXAMPLE = re.compile(r"```json\n(.*?)```", re.DOTALL)


def sections() -> dict[str, str]:
    """The admin port's page, by heading."""
    written = (REFERENCE / "admin-api.md").read_text()
    parts = re.split(r"^## `(.*)`$", written, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def paths_in(value: Any, path: str = "") -> set[str]:
    """Every key of a JSON document, with the keys it stands under; of lists, those of all entries."""
    if isinstance(value, list):
        return {each for entry in value for each in paths_in(entry, path)}
    if not isinstance(value, dict):
        return set()
    alike = {".by_model", ".by_tenant", ".by_template"} | ({".by_prompt"} if "hit_rate" in value else set())
    if path in {".by_source.reasons", ".buckets.reasons", ".timings.stages"} | alike:
        return set()  # named by code, or as another one
    if path == ".buckets.groups":
        return paths_in(list(value.values()), path)  # by their ids
    return {each for key, entry in value.items() for each in {f"{path}.{key}", *paths_in(entry, f"{path}.{key}")}}


def test_the_page_of_reasons_is_up_to_date():
    written = (REFERENCE / "reasons.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m docs.generate.reasons_page"


def test_every_reason_has_all_its_texts_and_stands_on_the_page():
    assert set(REASONS) == set(Reason)
    written = (REFERENCE / "reasons.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### `(\w+)`$", written, flags=re.MULTILINE)
    assert sorted(headings) == sorted(Reason)
    for reason, text in REASONS.items():
        assert text.rung in set(Rung) - {Rung.CONFIRMED}
        assert text.remedy in set(Remedy)
        for words in (text.title, text.meaning, text.advice):
            assert words.strip() == words != ""
            assert words in written
        assert not text.title.endswith(".")
        assert text.meaning.endswith(".")
        assert text.advice.endswith(".")
        assert re.fullmatch("[a-z]+(_[a-z]+)*", reason)


def test_advice_turns_on_rules_that_fix_the_reason_in_words_that_the_configuration_takes():
    for reason, text in REASONS.items():
        lines = re.findall(r"canon: \{.*\}", text.advice)
        assert bool(lines) == bool(text.rules), reason
        for line in lines:
            modes = CanonSettings.model_validate(yaml.safe_load(line)["canon"]).rules
            assert set(modes.values()) == {RuleMode.APPLY}
            assert text.rules[0] in modes
            assert set(modes) <= set(text.rules)


def test_the_page_names_the_rules_that_fix_a_reason():
    parts = re.split(r"^### `(\w+)`$", page(), flags=re.MULTILINE)
    for reason, part in zip(parts[1::2], parts[2::2], strict=True):
        reported = re.search(r"^In the gateway: (.*), see", part, flags=re.MULTILINE)
        assert re.findall("`([a-z-]+)`", reported[1] if reported else "") == list(REASONS[Reason(reason)].rules)


def test_every_title_is_one_reasons_only():
    assert len({text.title for text in REASONS.values()}) == len(REASONS)


def test_the_metrics_label_values_are_the_codes():
    catalog = MetricCatalog()
    observer = MetricsObserver(catalog)
    for reason in Reason:
        observer.on_missed("m", "acme", reason, 1)
    labels = [
        sample.labels["reason"]
        for family in catalog.registry.collect()
        if family.name == "gateway_missed_tokens"
        for sample in family.samples
        if sample.name == "gateway_missed_tokens_total"
    ]
    assert sorted(labels) == sorted(reason.value for reason in Reason)
    assert sorted(labels) == sorted(re.findall(r"^### `(\w+)`$", page(), flags=re.MULTILINE))


def test_every_path_of_the_admin_port_is_on_its_page_and_none_else_is():
    nothing: Any = None
    app = build_admin(AdminState(*[nothing] * len(fields(AdminState))), AdminAccess())
    paths = {
        f"{method} {route.path.replace(':path', '')}"
        for route in app.routes
        if isinstance(route, Route) and route.path.startswith("/admin/api/")
        for method in route.methods - {"HEAD"}
    }
    assert set(sections()) == paths


def test_every_example_is_json():
    found = sections()
    for heading, text in found.items():
        examples = EXAMPLE.findall(text)
        assert examples, heading
        for example in examples:
            orjson.loads(example)


def journal() -> Stats:
    """A journal with one request, of which everything is known."""
    made = Stats(NOON - 600)
    finished = answered(
        request_id="r1",
        at=NOON,
        prompt="support@v3",
        model="m",
        where=SpaceKey(model="m"),
        predicted_tokens=32,
        cached_tokens=32,
        completion_tokens=1,
        decision="warm",
        streamed=True,
        ttft_seconds=0.1,
        seconds=1.0,
        prefill_seconds_per_token=0.001,
    )
    explanation = Explanation(
        prompt_tokens=100,
        hits=32,
        hits_confirmed=True,
        rungs=(32, 32, 32, 32, 32, 32, 100, 100),
        missed=(Attribution(Reason.DYNAMIC_TIME, 68, True),),
        reference=ReferenceShown("r0", NOON - 1, "web", "session", 40),
        difference=Difference(Reason.DYNAMIC_TIME, "iso_datetime", "messages[0].content", 0, "system", 2, 1),
        turn=1,
        canonical=(RuleOutcome("dynamic-suffix", RuleMode.OBSERVE, 1, 64, 0),),
        edits=(EditShown("dynamic-suffix", RuleMode.OBSERVE, "moved", "messages[0].content", "moved", 4, "xx", "x"),),
        observed=1,
        slot=VaryingSlot("^On (.+)$", "on", Reason.DYNAMIC_TIME),
    )
    made.add(finished, explanation, 1)
    made.add_marker(Marker(NOON, MarkerKind.RELOADED, "changed: canon"))
    return made


@pytest.mark.parametrize(
    ("heading", "question", "arguments"),
    [
        ("GET /admin/api/summary", "summary", {}),
        ("GET /admin/api/reasons", "reasons", {"by": "source"}),
        ("GET /admin/api/requests", "requests", {}),
        ("GET /admin/api/report", "report", {}),
        ("GET /admin/api/requests/{id}", "request", {"id": "r1"}),
    ],
)
def test_examples_have_what_answers_have(heading, question, arguments):
    (example,) = EXAMPLE.findall(sections()[heading])
    answered = orjson.loads(journal().answer(question, arguments, NOON))
    shown = paths_in(orjson.loads(example))
    assert {path for path in shown if not path.startswith(ADDED_BY_THE_GATEWAY)} == paths_in(answered)
