"""How long tests wait for something that has to come true."""

HANG_SECONDS = 150.0
"""Only what hangs takes longer. A process that needs seconds of CPU time may wait a minute on a busy machine."""
