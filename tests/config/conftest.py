from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.config.settings import Settings, load_settings
from gateway.core.errors import ConfigInvalid


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Settings]:
    """Settings from a file with this content and exactly these environment variables."""

    def load_text(content: str | bytes, **environ: str) -> Settings:
        file = tmp_path / "gateway.yaml"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load_settings(file, environ)

    return load_text


@pytest.fixture
def mistakes(load: Callable[..., Settings], tmp_path: Path) -> Callable[..., list[str]]:
    """The mistakes reported for such a file, each without the folder in front."""

    def mistakes_of(content: str | bytes, **environ: str) -> list[str]:
        with pytest.raises(ConfigInvalid) as caught:
            load(content, **environ)
        folder = f"{tmp_path}/"
        assert all(problem.startswith(folder) and "\n" not in problem for problem in caught.value.problems)
        return [problem.removeprefix(folder) for problem in caught.value.problems]

    return mistakes_of
