"""Replicas of one model that differ from each other."""

from pathlib import Path

import pytest
from examined_settings import examined, names, only, settings_for

from gateway.evaluation.doctor.doctor_finding import Severity

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize(
    ("one", "other", "name", "said"),
    [
        ({"engine_version": "0.31.0"}, {}, "versions-differ", "0.31.0 (r0), 0.32.0 (r1)"),
        ({"root": "/models/a"}, {"root": "/models/b"}, "model-files-differ", "/models/a (r0), /models/b (r1)"),
        ({"block_size": 32}, {}, "block-sizes-differ", "32 (r0), 16 (r1)"),
        ({"max_model_len": 2048}, {}, "context-limits-differ", "2048 (r0), 32768 (r1)"),
    ],
)
async def test_replicas_that_differ(start_engine, one, other, name, said):
    engines = [await start_engine(**one), await start_engine(**other)]
    found = only(await examined(settings_for(*engines)))
    assert (found.name, found.where) == (name, "model demo")
    assert said in found.said
    assert "start all replicas of demo" in found.fix


async def test_replicas_with_different_chat_templates_and_the_tokenizer_of_the_engines(start_engine, tmp_path):
    engines = [await start_engine(), await start_engine(chat_template=GOLDEN / "agent.jinja"), await start_engine()]
    found = only(await examined(settings_for(*engines, model={"tokenizer": "engine"})))
    assert (found.name, found.severity) == ("templates-differ", Severity.ERROR)
    assert found.said.startswith("r1 and r0 make different tokens")


async def test_replicas_of_two_models_may_differ(start_engine):
    one, other = await start_engine(), await start_engine(model="big", block_size=32, engine_version="0.31.0")
    settings = settings_for(one)
    big = settings.models[0].model_copy(
        update={
            "id": "big",
            "replicas": (settings.models[0].replicas[0].model_copy(update={"id": "b", "url": other.url}),),
        }
    )
    assert names(await examined(settings.model_copy(update={"models": (settings.models[0], big)}))) == []
