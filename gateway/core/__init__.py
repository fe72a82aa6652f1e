"""What the rooms exchange: frozen values, errors and the protocols through which rooms see each other.

Nothing here does I/O or reads a clock, and nothing here imports another part of the gateway.
"""
