"""Shapes of values that change from request to request, one file per family."""
