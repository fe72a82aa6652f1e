"""Measures what canonicalization rules save, or would save.

In: explained requests. Out: per rule and mode, tokens saved and lost (``RuleOutcome``), and masked edits. Every prompt
is looked up in the form that was sent, and in the forms with an observed rule or without an applied one. Start with
``whatif``, which remembers the blocks of all forms; ``forms`` builds the forms; ``encoders`` tokenizes them.
"""
