"""Measurements against running servers, and the statistics that tell a difference from noise.

In: URLs, prompts. Out: figures with confidence intervals. ``statistics`` is used by every command that compares.
"""
