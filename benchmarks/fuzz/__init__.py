"""Fuzzers: random input for one component, and the properties that must hold for any input.

    python -m benchmarks.fuzz TARGET [--seconds 600] [--seed N]

A target is a module with a ``TARGET``; ``targets.py`` lists them. The tests run each target with a few examples;
``FUZZ_EXAMPLES=N`` sets how many.
"""
