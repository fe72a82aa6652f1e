"""Whether one client can stall the gateway for the others; ``python -m benchmarks.hostile`` runs it."""
