"""Beside the tests stands what they share: with this file here, it can be imported from the folders below, too."""
