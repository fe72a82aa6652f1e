"""Settings of the HTTP front: where the gateway listens, and what it accepts."""

import ipaddress
import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_VISIBLE_ASCII = re.compile(r"[!-~]+")


class ServerSettings(BaseModel):
    """The two ports of the gateway: the public one for clients, the admin one for operators."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    host: str = "127.0.0.1"
    """Address the public port listens on: an IP address or a host name, without scheme and port. Loopback by default,
    so that nothing is exposed by accident; `0.0.0.0` listens on every IPv4 address, as a container needs."""

    port: int = Field(default=8080, ge=0, le=65535)
    """TCP port clients connect to. 0 takes any free port, which the log then names."""

    admin_host: str = "127.0.0.1"
    """Address of the admin port (metrics, admin API). On anything but loopback `admin_token` is required."""

    admin_port: int = Field(default=8081, ge=0, le=65535, validate_default=True)
    """TCP port of the admin side, different from `port`. 0 takes any free port, which the log then names."""

    admin_token: SecretStr | None = Field(default=None, min_length=1, validate_default=True)
    """Secret that callers of the admin port send as `authorization: Bearer`. Null: no token is asked for, which is
    accepted on loopback only, because the admin port shows what every client does."""

    max_body_bytes: int = Field(default=16 * 1024 * 1024, ge=1)
    """Largest request body, in bytes; a larger one is answered with 413. 16 MiB holds a prompt of a million tokens, and
    bounds what one client can make the gateway hold. Too small: long prompts and inline images are refused."""

    max_json_depth: int = Field(default=64, ge=1, le=512)
    """Deepest nesting of a request body, in levels; a deeper one is answered with 400. Real requests stay below 20,
    tool schemas included. Too small: requests with nested tool schemas are refused."""

    keep_alive_seconds: float = Field(default=75, gt=0)
    """Seconds an idle client connection stays open. 75 is above the 60 of common load balancers, so that the gateway is
    not the first to close. Too small: clients see resets on reused connections."""

    shutdown_grace_seconds: float = Field(default=30, ge=0)
    """Seconds that running answers get to finish after SIGTERM; what still runs then is cut. A pod's
    `terminationGracePeriodSeconds` (30 in Kubernetes by default) has to be longer, or the pod is killed first. Too
    small: long answers are cut by every roll-out."""

    @field_validator("host", "admin_host")
    @classmethod
    def _is_an_address(cls, host: str) -> str:
        if not _is_ip(host) and not _HOST_NAME.fullmatch(host):
            raise ValueError("expected an IP address or a host name, without scheme and port (such as 0.0.0.0)")
        return host

    @field_validator("admin_port")
    @classmethod
    def _is_a_port_of_its_own(cls, port: int, info: ValidationInfo) -> int:
        if port and port == info.data.get("port"):
            raise ValueError("the same as server.port, expected a port of its own (choose another number)")
        return port

    @field_validator("admin_token")
    @classmethod
    def _is_there_when_exposed(cls, token: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        host = info.data.get("admin_host")
        if token is None and host is not None and not _is_loopback(host):
            raise ValueError(
                "required, because admin_host is an address that other machines may reach "
                "(set a token, or set admin_host to 127.0.0.1)"
            )
        if token is not None and not _VISIBLE_ASCII.fullmatch(token.get_secret_value()):
            raise ValueError("a token travels in a header: expected visible ASCII characters, without spaces")
        return token


def _is_ip(host: str) -> Literal[4, 6, False]:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback if _is_ip(host) else host.rstrip(".").lower() == "localhost"
