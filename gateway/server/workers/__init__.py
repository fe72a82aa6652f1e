"""Several processes that serve as one gateway.

Each of them is a whole gateway, and they take the connections of the public port together. ``supervisor`` keeps them
running (each is a ``crew`` member), ``worker`` is what they run, and ``line`` what the two say to each other. ``admin``
is the admin port: it asks one worker or all of them (``upstream``), and puts together what they say (``documents``,
``metrics``).

Nothing is imported here: the workers need little of it.
"""
