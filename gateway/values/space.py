"""Inside which two equal prefixes are the same cache blocks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheSpace:
    """Everything besides the tokens by which an engine tells cached blocks apart.

    Attributes:
        model_id: Id of the model, as clients name it.
        adapter: Name of the LoRA adapter, empty for none.
        salt: The request's ``cache_salt``, empty for none.
        variant: What makes the tokens themselves not comparable with an engine's: empty for the model's own token ids.
    """

    model_id: str
    adapter: str = ""
    salt: str = ""
    variant: str = ""
