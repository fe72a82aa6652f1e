"""Settings of the log and of the audit log."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class LogSettings(BaseModel):
    """What the gateway logs and how. Prompt text is never logged, at no level."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    format: Literal["auto", "json", "console"] = "auto"
    """`json`: one object a line, for log collectors. `console`: coloured text for people. `auto`: `console` on a
    terminal, `json` everywhere else."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is written. `info` shows start-up, replicas that come and go, and requests; above it, the
    lines about requests are left out as well."""

    requests: bool = True
    """One line for every request, with its decision and its token counts. False saves log volume at high rates; the
    metrics still count every request."""


class AuditSettings(BaseModel):
    """The audit log: who did what and when, in which prefix space, what was reset, and who was not let in. JSON lines,
    apart from the log; without any text of prompts, and without keys. Requests never wait for it: while it cannot be
    written (the disk is full), lines wait in memory, and those beyond 20,000 are counted in an `audit_gap` line."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    file: str | None = Field(default=None, min_length=1)
    """File that the lines are appended to, or `stdout`. Every gateway needs a file of its own. Its folder has to be
    there and to be writable, so that the file can be renamed when it is full. Null: no audit log."""

    max_bytes: int = Field(default=100 * 1024 * 1024, ge=64 * 1024)
    """Size, in bytes, at which the file is renamed to `FILE.1` (and that one to `FILE.2`, and so on) and a new one is
    begun. Too small: `keep` files reach back only a short time; too large: files that no tool opens. Not used for
    `stdout`."""

    keep: int = Field(default=10, ge=0, le=1000)
    """How many renamed files are kept besides the one being written; the oldest is overwritten. With the defaults the
    audit log takes 1.1 GB at most, about three million requests. Too small: what happened cannot be looked up any more;
    0: a full file is deleted. Lowering it deletes nothing that is there."""

    requests: bool = True
    """One line for every request that was let in. False leaves only what is rare: refused requests, resets, findings of
    personal data, and what operators do."""

    @field_validator("file")
    @classmethod
    def _has_a_folder(cls, file: str | None) -> str | None:
        if file is not None and file != "stdout" and not Path(file).absolute().parent.is_dir():
            raise ValueError(f"no such folder: {Path(file).absolute().parent} (make it, or name another file)")
        return file
