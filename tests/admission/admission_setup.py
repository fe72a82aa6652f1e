"""An authenticator with the settings of a test."""

from typing import Any

import pytest

from gateway.admission import Authenticator
from gateway.config.tenants_settings import AdmissionSettings, TenantSettings
from gateway.core.errors import GatewayError

WALL = 1_800_000_000.0
"""Friday, 2027-01-15, 08:00:00 UTC."""


class AdmissionSetup:
    """An `Authenticator` built from settings, and a clock that only moves when set."""

    def __init__(self, tenants: list[dict[str, Any]], **admission: Any) -> None:
        self.gate = Authenticator(*configured(tenants, **admission))
        self.now = 1000.0

    def replace(self, tenants: list[dict[str, Any]], **admission: Any) -> None:
        self.gate.replace(*configured(tenants, **admission))

    def caller(self, key: str | None = None, *, peer: str = "10.9.9.9", wall: float = WALL, **headers: str):
        return self.gate.identify(request(key, **headers), peer, wall)

    def admit(self, key: str | None = None, *, peer: str = "10.9.9.9", **headers: str):
        lines = request(key, **headers)
        return self.gate.admit(lines, dict(lines), peer, WALL, self.now)

    def refusal(self, *arguments: Any, **options: Any) -> GatewayError:
        """The error with which the next request would be refused."""
        with pytest.raises(GatewayError) as caught:
            self.admit(*arguments, **options)
        return caught.value


def configured(tenants: list[dict[str, Any]], **admission: Any):
    return (
        tuple(TenantSettings.model_validate(tenant, strict=True) for tenant in _frozen(tenants)),
        AdmissionSettings.model_validate(_frozen(admission), strict=True),
    )


def request(key: str | None = None, **headers: str) -> list[tuple[bytes, bytes]]:
    """Headers as the server gives them; ``x_cache_scope`` stands for ``x-cache-scope``."""
    lines = [(b"host", b"gateway"), (b"content-type", b"application/json")]
    lines += [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return lines if key is None else [*lines, (b"authorization", f"Bearer {key}".encode())]


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
