"""For engines whose pages are smaller than a block of a chain: the tokens of each page.

A block is hashed when its last page comes, and by then the others may have come in any event before it.
"""

from gateway.core.prompt import TOKEN_BYTES
from gateway.index.engine_blocks import EngineBlocks
from gateway.index.slot_map import NONE


class PageTokens:
    """Tokens by slot.

    Args:
        page_size: Tokens per page.
        pages_per_block: Pages per block.

    Attributes:
        pages_per_block: As above.
        block_bytes: Length of a block's tokens.
    """

    def __init__(self, page_size: int, pages_per_block: int) -> None:
        self._size = page_size * TOKEN_BYTES
        self.pages_per_block = pages_per_block
        self._tokens = bytearray(self._size)
        self.block_bytes = self._size * pages_per_block

    @property
    def nbytes(self) -> int:
        """Memory."""
        return len(self._tokens)

    def put(self, slot: int, tokens: bytes) -> None:
        """Tokens of the page in a slot."""
        end = (slot + 1) * self._size
        if len(self._tokens) < end:
            self._tokens.extend(bytes(end - len(self._tokens)))
        self._tokens[slot * self._size : end] = tokens

    def block_so_far(self, blocks: EngineBlocks, slot: int) -> tuple[int, bytes]:
        """The block that a page continues.

        Args:
            blocks: Where the pages are.
            slot: The last page there is.

        Returns:
            The slot where the last whole block ends, and the tokens since then.
        """
        pages: list[bytes] = []
        while not blocks.chain(slot) and blocks.parent(slot) != NONE:
            pages.append(bytes(self._tokens[slot * self._size : (slot + 1) * self._size]))
            slot = blocks.parent(slot)
        return slot, b"".join(reversed(pages))
