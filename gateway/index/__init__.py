"""Who holds which prefix."""

from gateway.index.predicted import PredictedIndex

__all__ = ["PredictedIndex"]
