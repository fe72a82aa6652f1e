"""Which spaces are meant: by an operator who resets some, or by a model that is another than before."""

from gateway.core.space import ModelVersion, PrefixSpace, ResetCause, SpaceSelection


def matches(selection: SpaceSelection, owner: str | None, space: PrefixSpace) -> bool:
    """Whether a space is of a selection; ``owner`` is whose spaces ``selection.tenant`` means."""
    return (
        (selection.model is None or selection.model == space.model_id)
        and (selection.tenant is None or owner == space.tenant)
        and (selection.scope is None or selection.scope == space.scope)
        and (
            selection.template_version is None
            or selection.template_version in (space.template_version, label_of(space.template_version))
        )
    )


def outdated(space: PrefixSpace, model: ModelVersion) -> ResetCause | None:
    """Why a space belongs to another version of its model; None if it does not."""
    if (space.tokenizer_id, space.template_version) != (model.tokenizer_id, model.template_version):
        return ResetCause.TEMPLATE_CHANGED
    if (space.adapter, space.context_limit) != (model.adapter, model.context_limit):
        return ResetCause.MODEL_UPDATE
    return None


def template_version(label: str, template_hash: str) -> str:
    """The version of a template: the operator's label and the hash, with a plus between; what there is of them."""
    return f"{label}+{template_hash}" if label and template_hash else label or template_hash


def label_of(version: str) -> str:
    """The operator's label in a ``template_version``."""
    return version.rpartition("+")[0] or version
