"""Prints a command's result; a reader that leaves early, as ``| head`` does, is no error."""

import os
import sys


def printed(text: str) -> None:
    """Write a text to standard output."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
