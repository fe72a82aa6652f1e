"""Finds mistakes in the set-up of the gateway and its engines; what the command ``doctor`` works with.

In: the settings, engines, Redis and ports as they are. Out: ``DoctorFinding``. Start with ``examination``; each group
of checks is a module of its own, and those without I/O take what ``engine_probe`` has read.
"""
