"""ZeroMQ addresses that engines publish events at, and how a gateway reaches them.

Both engines add the data-parallel rank to the port, and both derive from the address whether the publishing socket
listens or connects. One that connects cannot be subscribed to.
"""

import ipaddress
from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.core.kv_events import EventSource

_WILDCARDS = frozenset({"*", "0.0.0.0", "::"})  # noqa: S104 - addresses of engines, nothing is bound here
_HIGHEST_PORT = 65535

_MAX_SHOWN = 300
_MAX_TOPIC = 1000
"""Characters of an address that are logged, and of a topic that is subscribed to."""

_FIRST_EPHEMERAL_PORT = 32768
"""Of Linux (``net.ipv4.ip_local_port_range``)."""


class TcpAddress(NamedTuple):
    """The parts of ``tcp://host:port``; an IPv6 host is without its brackets."""

    host: str
    port: int

    @property
    def written(self) -> str:
        """The address in ZeroMQ's form."""
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"


def parse_tcp(address: str) -> TcpAddress | None:
    """Parse a TCP address; None for any other address."""
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not address.startswith("tcp://") or not colon or not host or not (port.isascii() and port.isdigit()):
        return None
    number = int(port[:6])
    return TcpAddress(host, number) if number <= _HIGHEST_PORT else None


def is_chosen_by_system(address: str) -> bool:
    """Whether an address may be reported for ``tcp://*:0``: an address of the machine with a free port."""
    tcp = parse_tcp(address)
    ip = _ip(tcp.host) if tcp else None
    return (
        tcp is not None
        and ip is not None
        and tcp.port >= _FIRST_EPHEMERAL_PORT
        and not ip.is_loopback
        and not ip.is_unspecified
    )


def source_of_rank(rank: int, events: str, replay: Any, topic: Any, host: str, *, listens: bool) -> EventSource:
    """The source of one rank from the engine's own report.

    The gateway connects to TCP ports of the replica's own host only. Any other address is refused: a replica must not
    be able to make the gateway connect to other machines, or to sockets of the gateway's own machine. An address that
    the operator configures is not restricted.

    Args:
        rank: The rank.
        events: The address of its publishing socket.
        replay: The same of the socket that answers replays, which always listens; anything but text for none. Left out
            if it is not on the replica's host.
        topic: Prefix of the messages' topic; anything but text for none.
        host: The name or address at which the replica is reached.
        listens: Whether the engine takes ``events`` for an address to listen at.
    """
    host = host.removeprefix("[").removesuffix("]")
    events_at = _on_host(events, host)
    replay_at = _on_host(replay, host) if isinstance(replay, str) else None
    return EventSource(
        rank=rank,
        events=events[:_MAX_SHOWN] if events_at is None else events_at.written,
        replay=None if replay_at is None else replay_at.written,
        topic=topic if isinstance(topic, str) and len(topic) <= _MAX_TOPIC else "",
        problem=_problem(events, rank, refused=events_at is None, listens=listens),
        refused=events_at is None,
    )


def offset_sources(events: str, replay: str | None, ranks: int) -> Sequence[EventSource]:
    """The sources of a configured address: rank r is at port + r.

    Args:
        events: ZeroMQ address of rank 0.
        replay: The same for replays; None without.
        ranks: Number of data-parallel ranks.
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


def _on_host(address: str, host: str) -> TcpAddress | None:
    """The engine's address with the replica's host; None if it belongs to another host."""
    tcp = parse_tcp(address)
    if tcp is None or tcp.port == 0:
        return None
    if tcp.host in _WILDCARDS:
        return tcp._replace(host=host)
    if tcp.host.lower() == host.lower() or (_ip(host) is not None and _ip(tcp.host) == _ip(host)):
        return tcp
    if _is_local(host):
        return tcp if _is_local(tcp.host) else None
    # ``tcp://*:0``: the engine reports an address of its machine, which is most probably the replica's host.
    return tcp._replace(host=host) if is_chosen_by_system(address) else None


def _problem(address: str, rank: int, *, refused: bool, listens: bool) -> str | None:
    tcp = parse_tcp(address)
    port = tcp.port - rank if tcp and tcp.port > rank else 5557
    fix = f'set "endpoint" in the engine\'s --kv-events-config to "tcp://*:{port}"'
    configured = f"{fix}, or the replica's `events` in the gateway's configuration to the address (events: tcp://…)"
    shown = address[:_MAX_SHOWN]
    if address.startswith("inproc://"):
        return f"{shown} can only be reached inside the engine's process: {fix}"
    if tcp is None or tcp.port == 0:
        return f"{shown} is no TCP address with a host and a port from 1 to {_HIGHEST_PORT}: {configured}"
    if refused:
        return f"{shown} is not on the replica's host, and the gateway connects nowhere else: {configured}"
    if not listens:
        return f"the engine's event socket connects to {shown} instead of listening: {fix}"
    return None


def _is_local(host: str) -> bool:
    ip = _ip(host)
    return ip.is_loopback if ip else host == "localhost"


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
