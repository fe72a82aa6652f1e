"""How the gateway's cost grows: one module per quantity that grows, each with a function that returns a ``Result``.

``python -m benchmarks.growth`` measures, writes the plots of docs/performance.md and prints its tables.
"""
