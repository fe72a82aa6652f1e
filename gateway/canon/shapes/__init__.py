"""Shapes of values that change from request to request, and the words they stand beside; one file per family."""
