"""Keeps prompt text out of Redis: what is written there can be read by gateways with the same secret only."""

import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import SecretStr

_NONCE_BYTES = 12
_NAME_BYTES = 16


class Seal:
    """Encrypts texts (AES-256-GCM) and gives them names that say nothing of the conversation they belong to.

    Args:
        secret: What all gateways have in common: ``spaces.secret``.
    """

    def __init__(self, secret: SecretStr) -> None:
        key = secret.get_secret_value().encode()
        # Two keys of their own, so that neither salts nor names say anything of the other.
        self._cipher = AESGCM(hmac.digest(key, b"context blocks: text", hashlib.sha256))
        self._naming = hmac.digest(key, b"context blocks: names", hashlib.sha256)

    def name(self, key: bytes) -> bytes:
        """Name of a block, 16 bytes."""
        return hmac.digest(self._naming, key, hashlib.sha256)[:_NAME_BYTES]

    def closed(self, name: bytes, text: str) -> bytes:
        """A text as it may be written down under a name.

        Raises:
            UnicodeEncodeError: it is no valid text.
        """
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, text.encode(), name)

    def opened(self, name: bytes, data: bytes) -> str | None:
        """The text again; None if it was closed with another secret, under another name, or not at all."""
        try:
            return self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], name).decode()
        except (InvalidTag, ValueError):
            return None
