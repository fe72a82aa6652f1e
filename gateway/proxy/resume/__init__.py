"""A stream whose replica dies in the middle goes on at another one, and its client sees one unbroken stream.

The text that the client has got goes to another replica as the beginning of the answer. What that one adds is told
under the first one's name. Everything here works on events that have already gone through the stream's filter: whole
ones.
"""

from gateway.proxy.resume.continued import is_resumable
from gateway.proxy.resume.resumable_stream import ResumableStream

__all__ = ["ResumableStream", "is_resumable"]
