"""Canonicalization: brings prompts of one application into one form, so that they share a prefix.

In: a parsed ``ChatRequest``. Out: the request with its body rewritten by the rules in mode ``apply``, and the edits.
Start with ``canonicalizer``; ``rulebook`` lists the rules, ``rules/`` has one file per rule, ``recognizer/``
recognizes dates, ids and names, and ``pii/`` finds personal data in leading messages.
"""
