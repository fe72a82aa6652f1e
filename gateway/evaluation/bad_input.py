"""The error of input that a command cannot work with."""


class BadInput(Exception):
    """Input that cannot be used; the message is one sentence that names the input and the fix. Exit code 2."""
