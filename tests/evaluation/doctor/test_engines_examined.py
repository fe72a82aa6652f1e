"""Each mistake in the flags of an engine is found, alone, and with the flag to change."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from examined_settings import examined, names, only, settings_for

from gateway.core.engine_facts import EngineFacts, EngineKind
from gateway.engines import ServerFacts
from gateway.evaluation.doctor.doctor_finding import Severity
from gateway.evaluation.doctor.engine_probe import EngineProbe, ExaminedReplica
from gateway.evaluation.doctor.generation_checks import generation_outcome
from gateway.tokenize.load_tokenizer import load_local

SECRET = "what all gateways have in common"
GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize("flavor", EngineKind)
async def test_nothing_is_found_at_engines_that_are_set_up_correctly(start_engine, flavor):
    engines = [await start_engine(flavor=flavor, prompt_tokens_details=True, clock_seconds=0.0) for _ in range(2)]
    diagnosis = await examined(settings_for(*engines, spaces={"isolation": "tenant", "secret": SECRET}))
    assert names(diagnosis) == []
    assert diagnosis.replicas == 2
    assert diagnosis.unchecked == []


async def test_few_small_requests_are_sent_of_one_token_each(start_engine):
    engine = await start_engine()
    await examined(settings_for(engine))
    assert len(engine.requests) <= 9
    generated = [each for each in engine.requests if each.path.endswith("/completions")]
    assert len(generated) == 4
    assert all(b'"max_tokens":1' in each.body and 8000 < len(each.body) < 9000 for each in generated)


async def test_without_generation_none_is_sent(start_engine):
    engine = await start_engine(ignores_salt=True)
    assert names(await examined(settings_for(engine), generates=False)) == []
    assert not [each for each in engine.requests if each.path.endswith("/completions")]


@pytest.mark.parametrize(
    ("flavor", "flag"),
    [(EngineKind.VLLM, "--enable-prefix-caching"), (EngineKind.SGLANG, "without --disable-radix-cache")],
)
async def test_prefix_caching_that_is_off(start_engine, flavor, flag):
    engine = await start_engine(flavor=flavor, prompt_tokens_details=True, prefix_caching=False)
    found = only(await examined(settings_for(engine)))
    assert (found.name, found.where, found.severity) == ("prefix-caching-off", "replica r0", Severity.ERROR)
    assert flag in found.fix


@pytest.mark.parametrize(
    ("flavor", "flag"),
    [(EngineKind.VLLM, "--enable-prompt-tokens-details"), (EngineKind.SGLANG, "--enable-cache-report")],
)
async def test_usage_details_that_are_off(start_engine, flavor, flag):
    engine = await start_engine(flavor=flavor, prompt_tokens_details=False)
    diagnosis = await examined(settings_for(engine))
    found = only(diagnosis)
    assert found.name == "usage-details-off"
    assert flag in found.fix
    assert "no answer reports cached tokens" in diagnosis.unchecked[0]


async def test_salts_that_the_engine_ignores(start_engine):
    engine = await start_engine(ignores_salt=True)
    isolated = only(await examined(settings_for(engine, spaces={"isolation": "tenant", "secret": SECRET})))
    assert (isolated.name, isolated.severity) == ("salt-ignored", Severity.ERROR)
    assert "reuses" in isolated.said
    assert "spaces.isolation: none" in isolated.fix
    expiring = only(await examined(settings_for(engine, spaces={"idle_ttl_seconds": 60})))
    assert (expiring.name, expiring.severity) == ("salt-ignored", Severity.ERROR)
    open_to_all = only(await examined(settings_for(engine)))
    assert (open_to_all.name, open_to_all.severity) == ("salt-ignored", Severity.WARNING)


async def test_salts_that_the_engine_refuses(start_engine):
    engine = await start_engine(refuses_salt=True)
    found = only(await examined(settings_for(engine, spaces={"isolation": "tenant", "secret": SECRET})))
    assert (found.name, found.severity) == ("salt-refused", Severity.ERROR)
    assert names(await examined(settings_for(engine))) == []


async def test_another_chat_template_is_found_with_the_first_differing_token(start_engine, tmp_path):
    template = tmp_path / "other.jinja"
    template.write_text((GOLDEN / "agent.jinja").read_text())
    engine = await start_engine(chat_template=template)
    found = only(await examined(settings_for(engine)))
    assert (found.name, found.severity) == ("template-differs", Severity.ERROR)
    assert "is the first that differs" in found.said
    assert "models[0].chat_template" in found.fix
    assert "--chat-template" in found.fix
    # The same file at both sides is right.
    assert names(await examined(settings_for(engine, model={"chat_template": str(template)}))) == []


async def test_another_chat_template_is_found_through_tokenize_too(start_engine, tmp_path):
    template = tmp_path / "other.jinja"
    template.write_text((GOLDEN / "agent.jinja").read_text())
    engine = await start_engine(chat_template=template, render=False)
    assert only(await examined(settings_for(engine))).name == "template-differs"


async def test_the_length_of_a_prompt_shows_another_template_where_only_texts_are_tokenized(start_engine, tmp_path):
    template = tmp_path / "other.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
    engine = await start_engine(
        chat_template=template, flavor=EngineKind.SGLANG, prompt_tokens_details=True, render=False
    )
    found = only(await examined(settings_for(engine)))
    assert found.name == "prompt-length-differs"
    assert "tokens here and" in found.said


async def test_a_tokenizer_that_cannot_be_loaded(start_engine, tmp_path):
    engine = await start_engine()
    found = only(await examined(settings_for(engine, model={"tokenizer": str(tmp_path / "nowhere")})))
    assert (found.name, found.where) == ("tokenizer-unavailable", "models[0].tokenizer")
    assert "nowhere" in found.said


async def test_a_dead_replica_is_a_finding_and_the_others_are_examined(start_engine):
    # The other one first: a port that is free again may be given out at once.
    broken = await start_engine(prefix_caching=False)
    dead = await start_engine()
    await dead.stop()
    diagnosis = await examined(settings_for(dead, broken))
    assert [(each.name, each.where) for each in diagnosis.ordered()] == [
        ("replica-unreachable", "replica r0"),
        ("prefix-caching-off", "replica r1"),
    ]
    assert "models[0].replicas[0].url" in diagnosis.findings[0].fix


@pytest.mark.parametrize("fault", ["hang", "garbage", "500", "invalid_json", "die_mid_stream=0", "reset"])
async def test_an_engine_that_fails_in_any_way_is_a_finding_and_no_crash(start_engine, fault):
    engine = await start_engine(fault=fault, max_model_len=None)
    diagnosis = await examined(settings_for(engine), timeout_seconds=0.3)
    assert names(diagnosis)
    assert {each.where for each in diagnosis.findings} == {"replica r0"}


async def test_requests_that_fail_while_health_checks_pass(start_engine):
    engine = await start_engine(fault="500:path=/v1/chat/completions")
    found = only(await examined(settings_for(engine)))
    assert found.name == "generation-fails"
    assert "status 500" in found.said


async def test_another_model_behind_the_address(start_engine):
    engine = await start_engine(model="other")
    found = only(await examined(settings_for(engine)))
    assert found.name == "wrong-model"
    assert "serves other, and not demo" in found.said
    assert "--served-model-name demo" in found.fix


async def test_metrics_that_are_off(start_engine):
    engine = await start_engine(fault="500:path=/metrics")
    diagnosis = await examined(settings_for(engine))
    assert names(diagnosis) == ["metrics-missing"]
    assert "--disable-log-stats" in diagnosis.findings[0].fix
    assert "KV events" in diagnosis.unchecked[0]


@pytest.mark.parametrize(("seconds", "said"), [(3600.0, "ahead of"), (-45.0, "behind")])
async def test_a_clock_that_differs(start_engine, seconds, said):
    engine = await start_engine(clock_seconds=seconds)
    found = only(await examined(settings_for(engine)))
    assert found.name == "clock-differs"
    assert said in found.said


async def test_a_prompt_that_is_computed_twice_although_caching_is_on():
    class NeverCached:
        """Answers as a vLLM whose cache is never hit."""

        async def post(self, path, fields, **_):
            details = {"prompt_tokens_details": {"cached_tokens": 0}}
            return 200, {"usage": {"prompt_tokens": 60, "completion_tokens": 1, **details}}

    settings = settings_for("http://h")
    replica = ExaminedReplica(settings.models[0], "models[0]", "models[0].replicas[0]", settings.models[0].replicas[0])
    probe = EngineProbe(replica, facts=EngineFacts(EngineKind.VLLM, block_size=16, prefix_caching=True))
    outcome = await generation_outcome(NeverCached(), probe, None, salted=True, timeout_seconds=1.0)
    assert [each.name for each in outcome.findings] == ["prefix-not-reused"]
    assert outcome.unchecked == []


async def test_blocks_too_large_for_a_probe_are_named_as_not_checked(start_engine):
    engine = await start_engine(blocks=3, block_size=64)
    diagnosis = await examined(settings_for(engine))
    assert names(diagnosis) == []
    assert "replica r0: salts and reuse" in diagnosis.unchecked[0]


async def test_another_tokenizer_is_found_with_the_first_differing_token(start_engine):
    engine = await start_engine()
    demo = load_local("builtin:demo")

    def encode(endpoint, fields):
        """The third token of everything is another one."""
        (ids,) = demo.encode(endpoint, fields)
        return (ids[:8] + (77).to_bytes(4, "little") + ids[12:],)

    other = SimpleNamespace(encode=encode, decode=demo.decode)
    found = only(await examined(settings_for(engine), encoders={"demo": other}))
    assert (found.name, found.severity) == ("tokenizer-differs", Severity.ERROR)
    assert "token 2 is the first that differs" in found.said
    assert ": 77 " in found.said
    assert "models[0].tokenizer" in found.fix


async def test_a_replica_with_a_key_is_examined_with_it(start_engine):
    engine = await start_engine()
    settings = settings_for(
        model={"replicas": [{"url": engine.url, "id": "r0", "api_key": "a-secret-of-the-replica"}]},
    )
    assert names(await examined(settings)) == []
    assert all((b"authorization", b"Bearer a-secret-of-the-replica") in each.headers for each in engine.requests)


async def test_an_sglang_that_reports_and_never_reuses():
    class NeverCached:
        async def post(self, path, fields, **_):
            return 200, {"usage": {"prompt_tokens": 60, "completion_tokens": 1}}

    settings = settings_for("http://h")
    replica = ExaminedReplica(settings.models[0], "models[0]", "models[0].replicas[0]", settings.models[0].replicas[0])
    facts = EngineFacts(EngineKind.SGLANG, block_size=16, prefix_caching=True)
    probe = EngineProbe(replica, facts=facts, server=ServerFacts(prefix_caching=True, usage_details=True))
    outcome = await generation_outcome(NeverCached(), probe, None, salted=True, timeout_seconds=1.0)
    assert [each.name for each in outcome.findings] == ["prefix-not-reused"]
