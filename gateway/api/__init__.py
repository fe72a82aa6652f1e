"""OpenAI HTTP in and out."""

from gateway.api.cors import Cors
from gateway.api.public import PublicApp

__all__ = ["Cors", "PublicApp"]
