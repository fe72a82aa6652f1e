"""Whether a file is still as it was when it was read."""

from pathlib import Path

Stamp = tuple[int, int, int] | None
"""Equal as long as a file stays as it is; None: there is none, or it cannot be reached."""


def file_stamp(path: Path) -> Stamp:
    """A file's stamp as of now. Blocks."""
    try:
        stat = path.stat()
    except OSError:
        return None
    # Not the modification time, which does not change when the file becomes readable.
    return stat.st_ino, stat.st_size, stat.st_ctime_ns
