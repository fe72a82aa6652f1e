"""A miss reason for every prompt token that was computed.

In: the record of an answered request. Out: an ``Explanation`` whose hits and reasons add up to the prompt's tokens.
Start with ``ladder`` and ``explainer``; ``worker`` runs them in a process beside the gateway.
"""
