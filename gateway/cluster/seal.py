"""Keeps what gateways share to themselves: what is in Redis can be read by gateways with the same secret only."""

import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import SecretStr

_NONCE_BYTES = 12
_NAME_BYTES = 16


class Seal:
    """Encrypts (AES-256-GCM), and gives names that say nothing of what they stand for.

    Args:
        secret: What all gateways have in common: ``spaces.secret``.
        purpose: What it is for: what is closed for one purpose cannot be opened for another.
    """

    def __init__(self, secret: SecretStr, purpose: str = "context blocks") -> None:
        key = secret.get_secret_value().encode()
        # Two keys of their own, so that neither salts nor names say anything of the other.
        self._cipher = AESGCM(hmac.digest(key, f"{purpose}: text".encode(), hashlib.sha256))
        self._naming = hmac.digest(key, f"{purpose}: names".encode(), hashlib.sha256)

    def name(self, key: bytes) -> bytes:
        """Name of a block, 16 bytes."""
        return hmac.digest(self._naming, key, hashlib.sha256)[:_NAME_BYTES]

    def closed(self, name: bytes, text: str) -> bytes:
        """A text as it may be written down under a name.

        Raises:
            UnicodeEncodeError: it is no valid text.
        """
        return self.closed_bytes(name, text.encode())

    def opened(self, name: bytes, data: bytes) -> str | None:
        """The text again; None if it was closed with another secret, under another name, or not at all."""
        opened = self.opened_bytes(name, data)
        try:
            return None if opened is None else opened.decode()
        except ValueError:
            return None

    def closed_bytes(self, name: bytes, data: bytes) -> bytes:
        """As ``closed``, for what is no text."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, name)

    def opened_bytes(self, name: bytes, data: bytes) -> bytes | None:
        """As ``opened``, for what is no text."""
        try:
            return self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], name)
        except (InvalidTag, ValueError):
            return None
