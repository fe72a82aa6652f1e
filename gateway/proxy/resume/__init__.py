"""Continues a stream at another replica after its replica failed; the client sees one unbroken stream.

The text that the client has got is sent to another replica as the beginning of the answer (``continued``). The events
of that replica are rewritten to match the first one's (``joined_stream``). Start with
``resumable_stream.ResumableStream``; its input are complete events that have passed the stream's filter.
"""

from gateway.proxy.resume.continued import is_resumable
from gateway.proxy.resume.resumable_stream import ResumableStream

__all__ = ["ResumableStream", "is_resumable"]
