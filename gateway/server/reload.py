"""Reloads the configuration, and applies those changes that need no restart."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.config_file import Stamp, file_stamp, named_files
from gateway.config.settings import ModelSettings, Settings, load_settings
from gateway.core.errors import ConfigInvalid
from gateway.tasks import TaskGroupOwner

_LOOK_SECONDS = 2.0
"""Interval of the check for changed files."""

_log = structlog.get_logger("gateway.server.reload")

_LIVE_SECTIONS = frozenset(
    {
        *("admission", "canon", "cost", "experiment", "explain", "personal_data", "prompts", "prompts_file", "tenants"),
        "warm",
    }
)
_LIVE_OF_MODELS = frozenset(
    {
        "canon",
        "chat_template",
        "chat_template_kwargs",
        "content_format",
        "cost",
        "discover",
        "gpus_per_replica",
        "replicas",
        "template_version",
        "tokenizer",
    }
)
_LIVE_OF_SERVER = frozenset({"admin_token", "admin_tokens", "passthrough_paths"})
_FIXED_OF_SPACES = frozenset({"file"})
_FIXED_OF_SHARED_SPACES = frozenset({"file", "secret"})
"""What is in Redis is encrypted with the secret."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")


class Reloader:
    """Reads the configuration again on request, or when one of its files changed.

    Args:
        config: The file.
        settings: The settings at the start.
        take_over: Applies changed settings.
        refused: Called when a changed configuration is refused.
    """

    def __init__(
        self,
        config: Path,
        settings: Settings,
        take_over: Callable[[Settings], Awaitable[None]],
        refused: Callable[[], None],
    ) -> None:
        self._config = config
        self._settings = settings
        self._take_over = take_over
        self._refused = refused
        # Taken at construction, so that changes during the start are noticed.
        self._seen = watched(config, settings)
        self._asked = asyncio.Event()
        self._tasks = TaskGroupOwner()

    def ask(self) -> None:
        """Read the configuration again now."""
        self._asked.set()

    def start(self) -> None:
        """Begin to watch the files."""
        self._tasks.spawn(self._run(), name="reload")

    async def stop(self) -> None:
        """Stop watching."""
        await self._tasks.cancel()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._asked.wait()
            except TimeoutError:
                if await asyncio.to_thread(watched, self._config, self._settings) == self._seen:
                    continue
            self._asked.clear()
            # Looked at before reading: what changes meanwhile is read once more.
            self._seen = await asyncio.to_thread(watched, self._config, self._settings)
            try:
                await self._reload()
            except Exception:  # noqa: BLE001
                # A mistake of the gateway's own must not end the watch.
                _log.exception("reload_failed", file=str(self._config))
                self._refused()
            self._seen |= await asyncio.to_thread(_new_files, self._seen, self._config, self._settings)

    async def _reload(self) -> None:
        try:
            new = await asyncio.to_thread(load_settings, self._config)
            self._settings, waiting = merged(self._settings, new)
        except ConfigInvalid as invalid:
            _log.error("reload_refused", problems=invalid.problems, instead="nothing changes")
            self._refused()
            return
        await self._take_over(self._settings)
        _log.info("reloaded", file=str(self._config))
        if waiting:
            _log.warning("restart_needed", keys=waiting)


def merged(running: Settings, new: Settings) -> tuple[Settings, list[str]]:
    """The settings to apply: new values of keys that can change while serving, running values of all others.

    Returns:
        The settings, and the keys that differ and need a restart.

    Raises:
        ConfigInvalid: each of the two is valid, but not what would be in force: no keys any more, say, on an address
            that only a restart gives up.
    """
    waiting: list[str] = []
    taken: dict[str, Any] = {}
    for name in Settings.model_fields:
        before, after = getattr(running, name), getattr(new, name)
        if name in _LIVE_SECTIONS:
            taken[name] = after
        elif name == "models":
            taken[name] = _models(before, after, waiting)
        elif name == "server":
            taken[name] = _section(name, before, after, _LIVE_OF_SERVER, waiting)
        elif name == "spaces":
            fixed = _FIXED_OF_SPACES if running.state is None else _FIXED_OF_SHARED_SPACES
            taken[name] = _section(name, before, after, set(type(after).model_fields) - fixed, waiting)
        else:
            taken[name] = _section(name, before, after, frozenset(), waiting)
    mixed = running.model_copy(update=taken)
    try:
        Settings.model_validate(mixed.model_dump())
    except ValidationError as invalid:
        problems = [_without_restart(error, waiting) for error in invalid.errors(include_input=False)]
        raise ConfigInvalid(problems) from None
    return mixed, waiting


def watched(config: Path, settings: Settings) -> dict[Path, Stamp]:
    """The stamp of every file that the running configuration was made from. Blocks."""
    files = [config, *named_files(config)]
    for model in settings.models:
        if model.chat_template is not None:
            files.append(model.chat_template)
        hosts: list[Any] = [*model.replicas, *([model.discover.template] if model.discover else [])]
        files += [file for each in hosts for file in (each.ca_file, each.cert_file, each.key_file) if file is not None]
        folder = Path(model.tokenizer).expanduser()
        files += [folder / name for name in _TOKENIZER_FILES]
    if settings.warm.file is not None:
        files.append(settings.warm.file)
    if settings.prompts_file is not None:
        files.append(settings.prompts_file)
    return {file: file_stamp(file) for file in files}


def _without_restart(error: ErrorDetails, waiting: list[str]) -> str:
    key = ".".join(map(str, error["loc"]))
    message = error["msg"].removeprefix("Value error, ")
    return f"{key}: {message}; as long as these wait for a restart: {', '.join(waiting)}"


def _models(
    before: tuple[ModelSettings, ...], after: tuple[ModelSettings, ...], waiting: list[str]
) -> tuple[ModelSettings, ...]:
    new = {model.id: model for model in after}
    if new.keys() != {model.id for model in before}:
        waiting.append("models")
    return tuple(_model(model, new[model.id], waiting) if model.id in new else model for model in before)


def _model(before: ModelSettings, after: ModelSettings, waiting: list[str]) -> ModelSettings:
    taken: ModelSettings = _section(f"models.{before.id}", before, after, _LIVE_OF_MODELS, waiting)
    return taken


def _section(name: str, before: Any, after: Any, live: set[str] | frozenset[str], waiting: list[str]) -> Any:
    """One section with what is live taken from the new one."""
    if not isinstance(before, BaseModel):
        if before != after:
            waiting.append(name)
        return before
    fields = type(before).model_fields
    waiting += [f"{name}.{key}" for key in fields if key not in live and getattr(before, key) != getattr(after, key)]
    return before.model_copy(update={key: getattr(after, key) for key in fields if key in live})


def _new_files(seen: dict[Path, Stamp], config: Path, settings: Settings) -> dict[Path, Stamp]:
    """Files that the configuration did not name before."""
    return {file: state for file, state in watched(config, settings).items() if file not in seen}
