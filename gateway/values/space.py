"""Prefix space: inside which two equal prefixes may be taken for the same."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefixSpace:
    """Everything besides the tokens that decides whether a computed prefix can be reused.

    Attributes:
        model_id: Id of the model, as clients name it.
        tokenizer_id: Hash of the tokenizer file, or the name of what stands in for it.
        template_version: The operator's label and a hash of the chat template with its default arguments.
    """

    model_id: str
    tokenizer_id: str
    template_version: str
