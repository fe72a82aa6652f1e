"""Several processes that serve as one gateway.

Each worker is a whole gateway; the system spreads the connections of the public port over them. Start with
``worker_supervisor``, which runs the workers; ``worker_process`` is one of them, with the messages to and from it;
``worker_main`` is its program. ``admin_port`` forwards requests to workers (``worker_client``) and merges their answers
(``merged_documents``, ``merged_metrics``).

Nothing is imported here: the workers need only a part of it.
"""
