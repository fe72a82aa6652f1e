"""Settings of the log."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


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
