"""The block chain of a prompt inside its prefix space."""

from gateway.hashing.chain import ChainHasher, space_root

__all__ = ["ChainHasher", "space_root"]
