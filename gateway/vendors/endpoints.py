"""ZeroMQ addresses that engines publish events at, and how a gateway reaches them.

Both engines count the port up by the data-parallel rank, and both decide by the look of the address whether the
publishing socket listens or connects. One that connects talks to nobody.
"""

import ipaddress
from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.values.kv_events import EventSource

_WILDCARDS = frozenset({"*", "0.0.0.0", "::"})  # noqa: S104 - addresses of engines, nothing is bound here
_HIGHEST_PORT = 65535

_FIRST_EPHEMERAL_PORT = 32768
"""Of Linux (``net.ipv4.ip_local_port_range``)."""


class TcpAddress(NamedTuple):
    """The parts of ``tcp://host:port``; an IPv6 host is without its brackets."""

    host: str
    port: int

    @property
    def written(self) -> str:
        """As ZeroMQ takes it."""
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"


def parse_tcp(address: str) -> TcpAddress | None:
    """None for anything else than a TCP address with a host and a port number."""
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not address.startswith("tcp://") or not colon or not host or not (port.isascii() and port.isdigit()):
        return None
    number = int(port[:6])
    return TcpAddress(host, number) if number <= _HIGHEST_PORT else None


def is_chosen_by_system(address: str) -> bool:
    """Whether an address looks like what an engine tells after ``tcp://*:0``: one of its machine's, and a free port."""
    tcp = parse_tcp(address)
    ip = _ip(tcp.host) if tcp else None
    return (
        tcp is not None
        and ip is not None
        and tcp.port >= _FIRST_EPHEMERAL_PORT
        and not ip.is_loopback
        and not ip.is_unspecified
    )


def told_source(rank: int, events: str, replay: Any, topic: Any, host: str, *, listens: bool) -> EventSource:
    """The source of one rank from what an engine tells about itself.

    Args:
        rank: The rank.
        events: Where its publishing socket was told to be.
        replay: The same of the socket that answers replays, which always listens; anything but text for none. Left out
            when it listens on the engine's machine only and the replica is on another.
        topic: Prefix of the messages' topic; anything but text for none.
        host: Under which name or address the replica is reached.
        listens: Whether the engine takes ``events`` for an address to listen at.
    """
    host = host.removeprefix("[").removesuffix("]")
    replay_at = _reached(replay, host) if isinstance(replay, str) and replay else None
    return EventSource(
        rank=rank,
        events=_reached(events, host),
        replay=None if replay_at is None or _unreachable(replay_at, host) else replay_at,
        topic=topic if isinstance(topic, str) else "",
        problem=_problem(events, rank, host, listens=listens),
    )


def offset_sources(events: str, replay: str | None, ranks: int) -> Sequence[EventSource]:
    """The sources of an address that was configured by hand: rank r is found at port + r.

    Args:
        events: ZeroMQ address of rank 0.
        replay: The same for replays; None without.
        ranks: How many data-parallel ranks there are.
    """
    return tuple(_offset_source(events, replay, rank) for rank in range(ranks))


def _offset_source(events: str, replay: str | None, rank: int) -> EventSource:
    moved, moved_replay = _offset(events, rank), _offset(replay, rank) if replay else None
    problem = None
    if moved is None:
        problem = f"rank {rank} has no address: only tcp://host:port can be counted up, and {events} cannot"
    elif replay and moved_replay is None:
        problem = f"rank {rank} has no replay address: only tcp://host:port can be counted up, and {replay} cannot"
    return EventSource(rank, moved or events, moved_replay, problem=problem)


def _offset(address: str, rank: int) -> str | None:
    if rank == 0:
        return address
    tcp = parse_tcp(address)
    if tcp is None or tcp.port + rank > _HIGHEST_PORT:
        return None
    return tcp._replace(port=tcp.port + rank).written


def _reached(address: str, host: str) -> str:
    tcp = parse_tcp(address)
    return tcp._replace(host=host).written if tcp and tcp.host in _WILDCARDS else address


def _problem(address: str, rank: int, host: str, *, listens: bool) -> str | None:
    tcp = parse_tcp(address)
    port = tcp.port - rank if tcp and tcp.port > rank else 5557
    fix = f'set "endpoint" in the engine\'s --kv-events-config to "tcp://*:{port}"'
    if address.startswith("inproc://"):
        return f"{address} can only be heard inside the engine's process: {fix}"
    if _unreachable(address, host):
        return f"{address} can only be heard on the engine's own machine: {fix}"
    if address.startswith("ipc://"):
        return None
    if tcp is None or tcp.port == 0:
        return f"{address} is no address that can be connected to: {fix}"
    if not listens:
        return f"the engine's event socket connects to {address} instead of listening, so nobody hears it: {fix}"
    return None


def _unreachable(address: str, host: str) -> bool:
    """Whether only the engine's own machine can reach an address, and the replica is on another one."""
    if _is_local(host):
        return False
    tcp = parse_tcp(address)
    return _is_local(tcp.host) if tcp else address.startswith("ipc://")


def _is_local(host: str) -> bool:
    ip = _ip(host)
    return ip.is_loopback if ip else host == "localhost"


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
