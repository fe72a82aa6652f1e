"""Check of a discovery source: its first answer, with at least one replica."""

import asyncio
import contextlib
from collections.abc import Sequence

from gateway.config.settings import ModelSettings
from gateway.discovery.discovered import SourceFailed
from gateway.discovery.discovery import source_of
from gateway.evaluation.doctor.doctor_finding import DoctorFinding, Severity
from gateway.evaluation.doctor.engine_probe import ExaminedReplica


async def discovered(
    model: ModelSettings, place: str, timeout_seconds: float
) -> tuple[Sequence[ExaminedReplica], Sequence[DoctorFinding]]:
    """The replicas that the source of a model lists, and what is wrong with it.

    Args:
        model: The model; it has a source.
        place: Place of the model in the configuration.
        timeout_seconds: Limit for the first answer.
    """
    assert model.discover is not None
    named = {replica.id for replica in model.replicas}
    problem = "it lists no replica"
    try:
        async with (
            asyncio.timeout(timeout_seconds),
            contextlib.aclosing(source_of(model.discover).answers()) as answers,
        ):
            async for found in answers:
                if found:
                    listed = [each.replica for each in found if each.replica.id not in named]
                    return [ExaminedReplica(model, place, f"{place}.discover", each) for each in listed], []
                break
    except TimeoutError:
        problem = f"no answer within {timeout_seconds:g} seconds"
    except SourceFailed as failure:
        problem = str(failure)
    finding = DoctorFinding(
        "discovery-fails",
        Severity.ERROR,
        f"{place}.discover",
        f"The replicas of {model.id} cannot be found ({problem}).",
        f"correct {place}.discover.{model.discover.source}",
    )
    return [], [finding]
