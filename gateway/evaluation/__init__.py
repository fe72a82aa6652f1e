"""Evaluation of traffic and of the set-up: what the commands ``analyze``, ``simulate``, ``measure``, ``doctor`` and
``diff`` work with.

In: logs, traces, URLs. Out: results that a command prints. ``workload_trace`` is the format that logs are reduced to
and that simulations read; ``bad_input`` is the error of all of them.
"""
