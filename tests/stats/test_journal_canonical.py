"""What rules bring, in the summary and of one request."""

import msgspec
import pytest
import yaml
from written_requests import NOON, SECONDS_PER_TOKEN, ask, explanation, finished

from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import Canonicalized, EditShown, RuleMode, RuleOutcome
from gateway.core.explanation import ReferenceShown, VaryingSlot
from gateway.core.reasons import Reason
from gateway.stats import ComputePrice, Stats, StatsLimits

OBSERVE, APPLY = RuleMode.OBSERVE, RuleMode.APPLY


def observed(*outcomes, **fields):
    """An explanation of 1,000 prompt tokens with these outcomes: rule, mode, edits, saved, lost."""
    return explanation(canonical=tuple(RuleOutcome(*each) for each in outcomes), observed=1, **fields)


def canonicalization(journal, **arguments):
    return ask(journal, "summary", **arguments)["canonicalization"]


def test_rules_are_ordered_by_what_they_save():
    journal = Stats(NOON - 600, price=ComputePrice(36.0, "EUR"))
    for number in range(10):
        outcomes = (
            ("dynamic-suffix", OBSERVE, 2, 500, 0),
            ("whitespace", APPLY, 1, 16 * number, 0),
            ("all", OBSERVE, 2, 500, 0),
        )
        journal.add(finished(f"r{number}", NOON - 60), observed(*outcomes), 2)
    journal.add(finished("lost", NOON - 30), observed(("dynamic-suffix", OBSERVE, 0, 0, 300)), 2)
    journal.add(finished("plain", NOON - 20), observed(), 2)
    journal.add(finished("behind", NOON - 20), explanation(), 2)
    shown = canonicalization(journal)
    assert shown["looked_at"] == {"requests": 12, "prompt_tokens": 12_000, "conversations": {"tried": 1, "of": 1}}
    suffix, whitespace = shown["rules"]
    gpu_seconds = 4700 * SECONDS_PER_TOKEN * 2
    assert suffix == {
        "rule": "dynamic-suffix",
        "mode": "observe",
        "requests": 10,
        "saved_tokens": 5000,
        "lost_tokens": 300,
        "net_tokens": 4700,
        "points": pytest.approx(100 * 4700 / 12_000, abs=1e-4),
        "points_interval": None,
        "gpu_seconds": pytest.approx(gpu_seconds),
        "cost": pytest.approx(gpu_seconds / 100),
    }
    assert (whitespace["rule"], whitespace["mode"], whitespace["net_tokens"]) == ("whitespace", "apply", 16 * 45)


def test_all_rules_together_are_reported_where_there_are_several():
    journal = Stats(NOON - 600)
    journal.add(finished("one"), observed(("unicode", OBSERVE, 1, 0, 0), ("all", OBSERVE, 1, 0, 0)), 1)
    assert [each["rule"] for each in canonicalization(journal)["rules"]] == ["unicode"]
    both = (("unicode", OBSERVE, 1, 0, 0), ("whitespace", OBSERVE, 1, 0, 16), ("all", OBSERVE, 2, 900, 0))
    journal.add(finished("two"), observed(*both), 1)
    assert [(each["rule"], each["net_tokens"]) for each in canonicalization(journal)["rules"]] == [
        ("all", 900),
        ("unicode", 0),
        ("whitespace", -16),
    ]


def test_tokens_are_worth_what_they_take_at_their_model():
    journal = Stats(NOON - 600)
    slow = finished("slow", model="large", prefill_seconds_per_token=0.1)
    for each in (slow, finished("quick")):
        journal.add(each, observed(("unicode", OBSERVE, 1, 100, 0)), 1)
    (rule,) = canonicalization(journal)["rules"]
    assert rule["gpu_seconds"] == pytest.approx(100 * 0.1 + 100 * SECONDS_PER_TOKEN)
    (rule,) = canonicalization(journal, model="large")["rules"]
    assert rule["gpu_seconds"] == pytest.approx(10)
    assert canonicalization(journal, model="none") == {
        "looked_at": {"requests": 0, "prompt_tokens": 0, "conversations": {"tried": 0, "of": 0}},
        "rules": [],
        "suggestions": [],
    }


def test_figures_of_rules_come_out_of_all_windows():
    journal = Stats(NOON - 8 * 86400)
    for hours in range(0, 7 * 24, 5):
        journal.add(finished(f"r{hours}", NOON - 3600 * hours), observed(("unicode", APPLY, 1, 10, 3)), 1)
    for window, count in (("1h", 1), ("24h", 5), ("7d", 34)):
        shown = canonicalization(journal, window=window)
        (rule,) = shown["rules"]
        assert (rule["requests"], rule["saved_tokens"], rule["lost_tokens"]) == (count, 10 * count, 3 * count)
        assert shown["looked_at"]["requests"] == count


def test_a_request_lists_what_was_changed_in_it():
    journal = Stats(NOON - 600)
    edits = (
        EditShown("unicode", APPLY, "removed", "messages[0].content", "A sign is taken out.", -1, "9", ""),
        EditShown("whitespace", OBSERVE, "trimmed", "messages[1].content", "Blanks are taken out."),
    )
    outcomes = (
        ("unicode", APPLY, 1, 160, 0),
        ("json-keys", APPLY, 0, 0, 16),
        ("whitespace", OBSERVE, 1, 0, 0),
        ("all", OBSERVE, 1, 0, 0),
    )
    canonical = Canonicalized((APPLY,) * 8, b'{"messages": "the secret words"}', True, "acme")
    journal.add(finished("one", canonical=canonical), observed(*outcomes, edits=edits), 1)
    answer = ask(journal, "request", id="one")
    assert "secret" not in str(answer)
    assert answer["canonicalization"] == {
        "observed": True,
        "weight": 1,
        "left_out": False,
        "applied": ["unicode"],
        "context_lost": True,
        "rules": [
            {"rule": "unicode", "mode": "apply", "edits": 1, "saved_tokens": 160, "lost_tokens": 0},
            {"rule": "json-keys", "mode": "apply", "edits": 0, "saved_tokens": 0, "lost_tokens": 16},
            {"rule": "whitespace", "mode": "observe", "edits": 1, "saved_tokens": 0, "lost_tokens": 0},
        ],
        "edits": [
            {
                "rule": "unicode",
                "mode": "apply",
                "what": "removed",
                "path": "messages[0].content",
                "said": "A sign is taken out.",
                "tokens": -1,
                "before": "9",
                "after": "",
            },
            {
                "rule": "whitespace",
                "mode": "observe",
                "what": "trimmed",
                "path": "messages[1].content",
                "said": "Blanks are taken out.",
                "tokens": None,
                "before": "",
                "after": "",
            },
        ],
    }


def slot(regex="^Run: (.+)$", reason=Reason.DYNAMIC_ID, **fields):
    return VaryingSlot(regex, "run", reason, **fields)


def varying(tokens=300, within="session", **fields):
    """A request with a place that has another value than in the one it is compared with, chosen by ``within``."""
    found = slot(**fields)
    reference = ReferenceShown("earlier", NOON, "web", within, 10)
    reasons = {found.reason: tokens, Reason.NEW_CONTENT: 1000 - tokens}
    return explanation(0, reasons, slot=found, observed=1, reference=reference)


def test_places_that_vary_are_suggested_as_settings():
    journal = Stats(NOON - 600)
    for number in range(4):
        journal.add(finished(f"r{number}"), varying(), 1)
    journal.add(finished("other", source="mobile"), varying(500, regex="^It's (.+?) o''clock"), 1)
    web, mobile = canonicalization(journal)["suggestions"]
    assert mobile == {
        "name": "run",
        "regex": "^It's (.+?) o''clock",
        "varies": "request",
        "reason": "dynamic_id",
        "model": "m",
        "tenant": "acme",
        "source": "mobile",
        "requests": 1,
        "tokens": 500,
        "points": 10.0,
        "yaml": mobile["yaml"],
    }
    assert (web["requests"], web["tokens"], web["source"]) == (4, 1200, "web")
    for each in (web, mobile):
        settings = CanonSettings.model_validate(yaml.safe_load(each["yaml"])["canon"])
        (found,) = settings.dynamic_suffix.slots
        assert (found.name, found.regex, found.varies) == (each["name"], each["regex"], each["varies"])
    assert [each["source"] for each in canonicalization(journal, source="web")["suggestions"]] == ["web"]


def test_what_was_not_seen_changing_within_a_conversation_belongs_to_it():
    """Pasted as it is, one customer's name must not come into another one's conversation."""
    journal = Stats(NOON - 600)
    journal.add(finished("one"), varying(within="skeleton"), 1)
    journal.add(finished("two"), varying(500, reason=Reason.USER_DATA, within="similar"), 1)
    (found,) = canonicalization(journal)["suggestions"]
    assert (found["varies"], found["reason"], found["tokens"]) == ("conversation", "user_data", 800)


def test_a_value_that_was_kept_belongs_to_the_conversation():
    journal = Stats(NOON - 600)
    journal.add(finished("one"), varying(), 1)
    assert canonicalization(journal)["suggestions"][0]["varies"] == "request"
    journal.add(finished("two"), varying(0, is_kept=True), 1)
    (found,) = canonicalization(journal)["suggestions"]
    assert (found["varies"], found["requests"], found["tokens"]) == ("conversation", 1, 300)
    journal.add(finished("three"), varying(reason=Reason.USER_DATA, regex="^Customer: (.+)$"), 1)
    assert [each["varies"] for each in canonicalization(journal)["suggestions"]] == ["conversation"] * 2


def test_only_what_costs_most_is_suggested():
    journal = Stats(NOON - 600, StatsLimits(suggestions=30))
    for number in range(1000):
        journal.add(finished(f"r{number}", NOON - 300), varying(number, regex=f"^Place {number}: (.+)$"), 1)
    journal.add(finished("last"), varying(1, regex="^Last: (.+)$"), 1)
    shown = canonicalization(journal)["suggestions"]
    assert len(shown) == 20
    assert shown[0]["tokens"] >= shown[-1]["tokens"] > 0


def test_new_versions_of_a_template_make_no_other_suggestion():
    journal = Stats(NOON - 600)
    for version in ("v1", "v2"):
        where = msgspec.structs.replace(finished().where, template=version)
        journal.add(finished(version, where=where), varying(), 1)
    (found,) = canonicalization(journal)["suggestions"]
    assert found["requests"] == 2
