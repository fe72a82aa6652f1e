"""The model and release that a running engine reports. They may change with new weights or a new process."""

import dataclasses

from gateway.simulator.config import EngineConfig


class Identity:
    """One engine's current identity.

    Attributes:
        root: Where the model's files are.
        version: Release of the engine.
        context: Context limit in tokens.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._take(config)

    def change(self, *, root: str = "", version: str = "", max_model_len: int | None = None) -> None:
        """Change it; empty or None keeps a value. Raises ValueError for a limit that the cache cannot hold."""
        before = self._config
        self._config = dataclasses.replace(
            before,
            root=root or before.root,
            engine_version=version or before.engine_version,
            max_model_len=before.max_model_len if max_model_len is None else max_model_len,
        )
        self._take(self._config)

    def _take(self, config: EngineConfig) -> None:
        self.root = config.root or config.model
        self.version = config.engine_version or config.flavor_version
        self.context = config.context
