"""Which family of clients a request comes from."""

import pytest

from gateway.core.api_keys import new_key
from gateway.explain.client_family import client_family


@pytest.mark.parametrize(
    ("headers", "family"),
    [
        ([(b"user-agent", b"mobile/2.1 (iOS 19)")], "mobile"),
        ([(b"user-agent", b"OpenAI/Python 2.8.0")], "openai"),
        ([(b"user-agent", b"curl")], "curl"),
        ([(b"user-agent", b"mobile/2.1"), (b"x-client", b" Kiosk App ")], "kiosk-app"),
        ([(b"x-client", b""), (b"user-agent", b"web/1")], "web"),
        ([(b"x-client", "клиент".encode())], "unknown"),
        ([(b"user-agent", b"/1.0")], "unknown"),
        ([], "unknown"),
        ([(b"x-client", b"<script>alert(1)</script>")], "script-alert-1-script"),
        ([(b"x-client", b"a" * 5000)], "a" * 40),
        ([(b"x-client", new_key().encode()), (b"user-agent", b"web/1")], "web"),
    ],
)
def test_family_is_what_the_client_says_or_its_product(headers, family):
    assert client_family(headers) == family
