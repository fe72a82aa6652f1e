"""OpenAI HTTP in and out."""

from gateway.api.public import PublicApp

__all__ = ["PublicApp"]
