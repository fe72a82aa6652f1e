"""Addresses of the trusted proxies, which name the tenant of a request."""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache, partial

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_MAPPED_BITS = 96
"""Length of the prefix ``::ffff:0:0/96``, in which IPv6 writes IPv4 addresses."""

_REMEMBERED_PEERS = 4096
_SHOWN_CHARS = 60


class TrustedProxies:
    """The set of the proxies' addresses.

    Args:
        networks: Addresses and networks, as ``check_network`` takes them.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [_network(text) for text in networks]
        # Reading an address takes longer than everything else here, and proxies are few.
        self._remembered = lru_cache(_REMEMBERED_PEERS)(partial(_look_up, self._networks))

    def __bool__(self) -> bool:
        return bool(self._networks)

    def include(self, peer: str) -> bool:
        """Whether a connection from this address is a proxy's; what is no address (a Unix socket, nothing) is not."""
        return bool(self._networks) and self._remembered(peer)


def _look_up(networks: Iterable[Network], peer: str) -> bool:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    # A dual-stack socket sees IPv4 peers in this form.
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)


def check_network(text: str) -> str:
    """The text itself, if it is an address or a network.

    Raises:
        ValueError: It is neither, or it covers all addresses.
    """
    if _network(text).prefixlen == 0:
        raise ValueError(f"{text} is everybody, who could then be any tenant (name the proxies' own networks)")
    return text


def _network(text: str) -> Network:
    try:
        network: Network = ipaddress.ip_network(text)
    except ValueError:
        raise ValueError(_correction(text)) from None
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None and network.prefixlen >= _MAPPED_BITS:
        return ipaddress.IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    return network


def _correction(text: str) -> str:
    try:
        meant = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return f"expected an address or a network, such as 10.0.0.7 or 10.0.0.0/8, got {text[:_SHOWN_CHARS]!r}"
    address = text.partition("/")[0]
    return f"{text} is neither an address nor a network (write {meant} for the network, {address} for the address)"
