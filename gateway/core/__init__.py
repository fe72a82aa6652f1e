"""Values, errors and protocols that all packages share.

Nothing here does I/O or reads a clock, and nothing here imports another package of the gateway. Start with ``request``,
``prompt``, ``decision`` and ``outcome``: the values of a request in their order.
"""
