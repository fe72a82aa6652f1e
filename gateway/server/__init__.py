"""The processes and listeners of a gateway: sockets, connection limits, reload, shutdown, worker processes.

In: settings and a configuration file. Out: a running gateway. Start with ``run``.
"""
