"""Makes glibc return memory to the system: large blocks as soon as they are free, all others when asked.

By default, glibc keeps freed blocks of up to 32 MiB in its heap, and returns hundreds of MiB at once when the top of
the heap becomes free. The process stalls meanwhile (about 0.25 ms per MiB), and memory that is free between
blocks in use is never returned. With a fixed threshold, each block above it is a mapping of its own (mallopt(3)).
"""

import ctypes

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 1024 * 1024
"""Only large bodies and prompts have such blocks; a new mapping costs about 0.3 ms per MiB when it is first written."""


def return_large_blocks(least: int = _LARGE_BYTES) -> bool:
    """Set the threshold for this process, in bytes. Returns False where the C library has no such setting (musl,
    macOS)."""
    try:
        return bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, least) == 1)
    except (AttributeError, OSError):
        return False


def return_free_memory() -> bool:
    """Return what is free now between blocks in use: loading a tokenizer leaves tens of MiB. Takes milliseconds.

    Returns False where the C library cannot, and where nothing was free.
    """
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0) == 1)
    except (AttributeError, OSError):
        return False
