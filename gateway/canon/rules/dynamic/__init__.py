"""``dynamic-suffix``: moves varying values behind the last message, and leaves constant pointers in their places.

In: leading messages. Out: edits, and context blocks for later turns. Start with ``dynamic_suffix``; ``search`` finds
the values, with ``finding`` (times), ``id_finder`` (ids), ``quoted_data`` and ``narratives`` (what must not change).
"""

from gateway.canon.rules.dynamic.dynamic_suffix import DynamicSuffix, appended_blocks

__all__ = ["DynamicSuffix", "appended_blocks"]
