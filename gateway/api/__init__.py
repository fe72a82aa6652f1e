"""The OpenAI API of the public port.

HTTP requests come in; each becomes an admitted ``ChatRequest`` that the flow answers through a ``Sink``. Start with
``public.PublicApp``; ``parse`` checks bodies, ``routes`` serves everything but generation.
"""

from gateway.api.cors import Cors
from gateway.api.public import PublicApp

__all__ = ["Cors", "PublicApp"]
