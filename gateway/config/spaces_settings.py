"""Settings of prefix spaces: who shares cached prefixes with whom, and for how long."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

_SHORTEST_SECRET = 16

ISOLATED_IDLE_TTL_SECONDS = 3600.0
"""Default of ``idle_ttl_seconds`` with isolation: an hour covers the pauses of conversations."""

ISOLATED_MAX_AGE_SECONDS = 86400.0
"""Default of ``max_age_seconds`` with isolation: a day bounds how long anything may be reused."""


class SpacesSettings(BaseModel):
    """Who shares cached prefixes with whom, and for how long.

    A prefix can be reused only inside one space: same model, tokenizer, template version, tenant (or group), scope,
    LoRA adapter, context limit, regions, and epoch. The engines are bound to it by a `cache_salt` that no client can
    guess.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    isolation: Literal["tenant", "group", "none"] | None = None
    """`tenant`: every tenant has its own prefixes. `group`: tenants of the same `group` share them. `none`: all
    requests share them, for a single trusted tenant: a client can measure by timing whether another client has sent
    the beginning of a prompt before. Null: `tenant` where tenants are distinguished (by keys or by a trusted proxy),
    else `none`."""

    secret: SecretStr | None = None
    """What the engines' salts are made with; required with isolation, 16 characters at least. Another secret makes all
    cached prefixes unreachable; with the secret and direct access to an engine, one can find out what is cached there.
    Make one with `openssl rand -hex 32`."""

    idle_ttl_seconds: float | None = Field(default=None, gt=0)
    """A space that is not used for so long ends: nothing cached in it is reused afterwards. Null: 3600 with isolation,
    an hour, which covers the pauses of conversations; never without isolation. Too small: prefixes are computed again
    after every pause; too large: what a tenant sent stays reusable (by that tenant alone) for longer than expected.
    With isolation a tenant may have its own. Without isolation, a value gives every request a `cache_salt`, and each
    start of the gateway begins new epochs unless `spaces.file` keeps them."""

    max_age_seconds: float | None = Field(default=None, gt=0)
    """A space ends at this age, however busy. Null: 86400 with isolation, a day, which bounds how long anything may be
    reused; never without isolation, where a value has the effects that `idle_ttl_seconds` names. Too small: busy
    tenants pay for their prefixes again and again. With isolation a tenant may have its own."""

    file: Path | None = None
    """File with the epochs of spaces, so that a restart of the gateway does not end them all. One gateway writes
    it; it holds names and numbers, no text of prompts. Null: every space that is isolated or expires begins a new epoch
    with the gateway; any other forgets its resets at a restart. The folder has to be there."""

    max_spaces: int = Field(default=10_000, ge=1)
    """Spaces alive at the same time; a further one ends the space unused for longest of the owner with the most. Each
    takes about a kilobyte. Too small: prefixes turn cold that are still in use."""

    @field_validator("secret")
    @classmethod
    def _is_long_enough(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and len(secret.get_secret_value()) < _SHORTEST_SECRET:
            raise ValueError(f"expected {_SHORTEST_SECRET} characters at least (make one with `openssl rand -hex 32`)")
        return secret

    @field_validator("file")
    @classmethod
    def _has_a_folder(cls, file: Path | None) -> Path | None:
        if file is not None and not file.absolute().parent.is_dir():
            raise ValueError(f"no such folder: {file.absolute().parent} (make it, or name another file)")
        return file

    def lifetimes(self, *, isolated: bool) -> tuple[float | None, float | None]:
        """Idle time and maximum age of a space in seconds, with their defaults settled; None: it never ends by it."""
        if not isolated:
            return self.idle_ttl_seconds, self.max_age_seconds
        return self.idle_ttl_seconds or ISOLATED_IDLE_TTL_SECONDS, self.max_age_seconds or ISOLATED_MAX_AGE_SECONDS
