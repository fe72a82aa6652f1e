"""Recognizes values that change from request to request: times, ids, data of people; one file per family.

In: two texts that differ at one place (``TextWindow``). Out: the class of the differing values. Start with ``shape``.
"""
