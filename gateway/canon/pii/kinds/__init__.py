"""Built-in kinds of personal data, one file each; ``find`` yields the spans of its kind in a ``TextView``."""
