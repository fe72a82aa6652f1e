"""APIs that are translated to chat requests at the edge, and their answers back: one module per direction and API."""

from gateway.api.dialects.dialect import Dialect, DialectRequest, Translated
from gateway.api.dialects.translating_sink import AnswerConverter, TranslatingSink

__all__ = ["AnswerConverter", "Dialect", "DialectRequest", "Translated", "TranslatingSink"]
