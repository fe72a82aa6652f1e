"""The block chain of a prompt."""

from gateway.hashing.chain import ChainHasher, space_root

__all__ = ["ChainHasher", "space_root"]
