"""Encryption of shared state: only gateways with the same secret can read what is in Redis."""

import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import SecretStr

_NONCE_BYTES = 12
_NAME_BYTES = 16


class Seal:
    """Encrypts values (AES-256-GCM) and derives opaque names from keys (HMAC-SHA-256).

    Args:
        secret: Shared secret of all gateways: ``spaces.secret``.
        purpose: Key separation: data encrypted for one purpose cannot be decrypted for another.
    """

    def __init__(self, secret: SecretStr, purpose: str = "context blocks") -> None:
        key = secret.get_secret_value().encode()
        # Two derived keys, so that salts, values and names are independent.
        self._cipher = AESGCM(hmac.digest(key, f"{purpose}: text".encode(), hashlib.sha256))
        self._naming = hmac.digest(key, f"{purpose}: names".encode(), hashlib.sha256)

    def name(self, key: bytes) -> bytes:
        """Name of a block, 16 bytes."""
        return hmac.digest(self._naming, key, hashlib.sha256)[:_NAME_BYTES]

    def closed(self, name: bytes, text: str) -> bytes:
        """Encrypt a text that is stored under a name.

        Raises:
            UnicodeEncodeError: the text has lone surrogates.
        """
        return self.closed_bytes(name, text.encode())

    def opened(self, name: bytes, data: bytes) -> str | None:
        """Decrypt a text; None if it was encrypted with another secret, under another name, or not at all."""
        opened = self.opened_bytes(name, data)
        try:
            return None if opened is None else opened.decode()
        except ValueError:
            return None

    def closed_bytes(self, name: bytes, data: bytes) -> bytes:
        """As ``closed``, for bytes."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, name)

    def opened_bytes(self, name: bytes, data: bytes) -> bytes | None:
        """As ``opened``, for bytes."""
        try:
            return self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], name)
        except (InvalidTag, ValueError):
            return None
