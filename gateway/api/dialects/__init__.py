"""APIs that are translated to chat requests at the edge, and their answers back: one module per direction and API."""

from gateway.api.dialects.dialect import Asked, Dialect, Problem, Translated, place_in
from gateway.api.dialects.translating_sink import AnswerConverter, TranslatingSink

__all__ = ["AnswerConverter", "Asked", "Dialect", "Problem", "Translated", "TranslatingSink", "place_in"]
