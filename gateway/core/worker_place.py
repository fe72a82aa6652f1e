"""The number and the files of one of several workers."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """One worker: its number, and the folder that all workers share.

    Attributes:
        number: From 0.
        folder: A folder of their own, for as long as the gateway runs.
    """

    number: int
    folder: Path

    @property
    def admin_at(self) -> Path:
        """The Unix socket where it answers what is asked at the admin port."""
        return self.folder / f"worker-{self.number}.sock"

    @property
    def explain_at(self) -> Path:
        """The Unix socket of the process that explains for all of them."""
        return self.folder / "explain.sock"

    @property
    def spaces_file(self) -> Path:
        """Where it keeps its prefix spaces if the configuration names no file."""
        return self.folder / f"spaces-{self.number}.json"

    def own(self, file: Path) -> Path:
        """The file it has where the configuration names one: no two can write the same. The first has that one."""
        return file if self.number == 0 else file.with_name(f"{file.name}.worker-{self.number}")
