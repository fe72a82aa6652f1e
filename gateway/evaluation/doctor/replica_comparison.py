"""Compares the replicas of one model: versions, files, block sizes, context limits, chat templates. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from gateway.evaluation.doctor.doctor_finding import DoctorFinding, Severity
from gateway.evaluation.doctor.engine_probe import EngineProbe

_MOST_NAMED = 4


def comparison_findings(probes: Sequence[EngineProbe]) -> Iterator[DoctorFinding]:
    """In what the replicas of each model differ. Replicas that do not answer are left out."""
    for model, replicas in _by_model(probes).items():
        where = f"model {model}"
        values = _grouped(replicas, lambda probe: probe.version)
        if len(values) > 1:
            yield DoctorFinding(
                "versions-differ",
                Severity.WARNING,
                where,
                f"Its replicas run different releases of the engine: {_listed(values)}. The same prompt may get other "
                "tokens, and a conversation that moves gets other answers.",
                f"start all replicas of {model} from one image",
            )
        values = _grouped(replicas, lambda probe: probe.root)
        if len(values) > 1:
            yield DoctorFinding(
                "model-files-differ",
                Severity.ERROR,
                where,
                f"Its replicas have loaded different files: {_listed(values)}. Answers depend on the replica.",
                f"start all replicas of {model} with the same --model and --revision",
            )
        values = _grouped(replicas, lambda probe: str(probe.facts.block_size or ""))
        if len(values) > 1:
            yield DoctorFinding(
                "block-sizes-differ",
                Severity.WARNING,
                where,
                f"Its replicas have different block sizes: {_listed(values)}. The larger ones reuse less of a prefix.",
                f"start all replicas of {model} with the same --block-size (SGLang: --page-size)",
            )
        values = _grouped(replicas, lambda probe: str(probe.context_limit or ""))
        if len(values) > 1:
            yield DoctorFinding(
                "context-limits-differ",
                Severity.WARNING,
                where,
                f"Its replicas take prompts of different length: {_listed(values)} tokens. A long prompt is refused by "
                "some of them.",
                f"start all replicas of {model} with the same --max-model-len (SGLang: --context-length)",
            )


def template_findings(rendered: Sequence[tuple[EngineProbe, tuple[object, ...]]]) -> Iterator[DoctorFinding]:
    """Whether the replicas of each model render the same probes to the same tokens.

    Args:
        rendered: For each replica the token ids of the probes; None for a probe without an answer.
    """
    by_model: dict[str, list[tuple[EngineProbe, tuple[object, ...]]]] = {}
    for each in rendered:
        by_model.setdefault(each[0].replica.model.id, []).append(each)
    for model, replicas in by_model.items():
        first, expected = replicas[0]
        others = [
            probe.replica.settings.id
            for probe, ids in replicas[1:]
            if any(
                one is not None and other is not None and one != other for one, other in zip(expected, ids, strict=True)
            )
        ]
        if others:
            yield DoctorFinding(
                "templates-differ",
                Severity.ERROR,
                f"model {model}",
                f"{_named(others)} and {first.replica.settings.id} make different tokens of the same prompt: "
                "their chat "
                "templates or tokenizers are not the same, so predictions are wrong for some of them.",
                f"start all replicas of {model} with the same --chat-template and --tokenizer",
            )


def _by_model(probes: Sequence[EngineProbe]) -> Mapping[str, list[EngineProbe]]:
    found: dict[str, list[EngineProbe]] = {}
    for probe in probes:
        if probe.reached:
            found.setdefault(probe.replica.model.id, []).append(probe)
    return found


def _grouped(probes: Sequence[EngineProbe], value: Callable[[EngineProbe], str]) -> Mapping[str, list[str]]:
    """Ids of the replicas by value; without those whose value is unknown."""
    found: dict[str, list[str]] = {}
    for probe in probes:
        if known := value(probe):
            found.setdefault(known, []).append(probe.replica.settings.id)
    return found


def _listed(values: Mapping[str, Sequence[str]]) -> str:
    shown = [f"{value} ({_named(ids)})" for value, ids in list(values.items())[:_MOST_NAMED]]
    return ", ".join(shown) + (" and more" if len(values) > _MOST_NAMED else "")


def _named(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_MOST_NAMED]) + (f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else "")
