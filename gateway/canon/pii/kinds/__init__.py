"""Built-in kinds of personal data, one a file: each finds its kind in a ``TextView``."""
