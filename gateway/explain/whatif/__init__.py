"""Measures what canonicalization rules save, or would save.

In: explained requests. Out: per rule and mode, tokens saved and lost (``RuleOutcome``), and masked edits. Every prompt
is looked up in the form that was sent, and in the forms with an observed rule or without an applied one. Start with
``whatif``; ``forms`` builds the forms; ``seen_forms`` remembers their blocks; ``encoders`` tokenizes them.
"""
