"""Converts the endpoint slices of a Kubernetes service to replicas. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from gateway.config.discovery_settings import KubernetesSettings, TemplateSettings
from gateway.config.replica_settings import ReplicaSettings
from gateway.discovery.discovered import Condition, DiscoveredReplica, SourceFailed, replica_at

_ORDER = list(Condition)


class _Object(msgspec.Struct, rename="camel", frozen=True):
    """A part of Kubernetes' objects, with its own field names; unused fields are ignored."""


class Metadata(_Object, frozen=True):
    """Name and version of an object, or version of a list."""

    name: str = ""
    resource_version: str = ""


class _Conditions(_Object, frozen=True):
    ready: bool | None = None
    terminating: bool | None = None


class _Reference(_Object, frozen=True):
    kind: str = ""
    name: str = ""


class _Endpoint(_Object, frozen=True):
    addresses: Sequence[str] = ()
    conditions: _Conditions = _Conditions()
    target_ref: _Reference | None = None
    zone: str | None = None


class _Port(_Object, frozen=True):
    name: str | None = None
    port: int | None = None


class EndpointSlice(_Object, frozen=True):
    """Some of a service's endpoints; those of both address families, and of many pods, are spread over several."""

    metadata: Metadata
    address_type: str = "IPv4"
    endpoints: Sequence[_Endpoint] | None = None
    ports: Sequence[_Port] | None = None


class _Made(NamedTuple):
    """The parts of a replica's settings that come from its endpoint."""

    host: str
    port: int
    name: str | None
    zone: str


class Slices:
    """All slices of a service, by name."""

    def __init__(self) -> None:
        self._slices: dict[str, EndpointSlice] = {}
        self._made: dict[_Made, ReplicaSettings] = {}
        """The last result, for reuse: a change affects one slice, and validating a replica costs as much as a
        request."""
        self._made_by: tuple[KubernetesSettings, TemplateSettings] | None = None

    def replace(self, items: Iterable[Any]) -> None:
        """Replace all slices.

        Raises:
            SourceFailed: they are not what they should be.
        """
        slices = [read_slice(item) for item in items]
        self._slices = {each.metadata.name: each for each in slices}

    def change(self, kind: str, item: Any) -> str:
        """Apply an added, modified or deleted slice; returns its version.

        Raises:
            SourceFailed: it is not what it should be.
        """
        changed = read_slice(item)
        if kind == "DELETED":
            self._slices.pop(changed.metadata.name, None)
        else:
            self._slices[changed.metadata.name] = changed
        return changed.metadata.resource_version

    def found(self, settings: KubernetesSettings, template: TemplateSettings) -> Sequence[DiscoveredReplica]:
        """The replicas.

        A pod in several slices (it has addresses of both families, or is being moved to another slice) is one replica:
        at the address of the first family, and in the best condition reported there.

        Raises:
            SourceFailed: the service lacks the configured port.
        """
        found: dict[str, tuple[tuple[str, int], DiscoveredReplica]] = {}
        portless = False
        before = self._made if self._made_by == (settings, template) else {}
        self._made, self._made_by = {}, (settings, template)
        for each in self._slices.values():
            if not each.endpoints:
                continue
            port = _port(each, settings.port)
            if port is None:
                portless = True
                continue
            for condition, made in _endpoints(each, port):
                settled = before.get(made) or _replica(made, settings, template)
                self._made[made] = settled
                replica = DiscoveredReplica(settled, condition)
                rank = each.address_type, _ORDER.index(condition)
                known = found.get(replica.replica.id)
                if known is None or rank < known[0]:
                    found[replica.replica.id] = rank, replica
        if portless and not found:
            raise SourceFailed(_no_port(settings))
        return [found[name][1] for name in sorted(found)]


def read_slice(item: Any) -> EndpointSlice:
    """An object of the API.

    Raises:
        SourceFailed: it is malformed.
    """
    try:
        return msgspec.convert(item, EndpointSlice)
    except msgspec.ValidationError as error:
        raise SourceFailed(f"the API sent an endpoint slice that cannot be decoded: {error}") from None


def _endpoints(each: EndpointSlice, port: int) -> Iterator[tuple[Condition, _Made]]:
    for endpoint in each.endpoints or ():
        if not endpoint.addresses:
            continue
        pod = endpoint.target_ref
        name = pod.name if pod is not None and pod.kind == "Pod" and pod.name else None
        # All of its addresses lead to the same pod.
        yield _condition(endpoint.conditions), _Made(endpoint.addresses[0], port, name, endpoint.zone or "")


def _replica(made: _Made, settings: KubernetesSettings, template: TemplateSettings) -> ReplicaSettings:
    name = made.name
    if name is not None and settings.namespace is not None:
        name = f"{name}.{settings.namespace}"  # another model's pods may have the same names in another namespace
    return replica_at(template, scheme=settings.scheme, host=made.host, port=made.port, name=name, zone=made.zone)


def _condition(conditions: _Conditions) -> Condition:
    """Missing conditions count as ready and not terminating, as the API defines."""
    if conditions.terminating:
        return Condition.LEAVING
    return Condition.NOT_READY if conditions.ready is False else Condition.READY


def _port(each: EndpointSlice, wanted: str) -> int | None:
    if wanted.isdigit():
        return int(wanted)
    ports = [port for port in each.ports or () if port.port is not None and (not wanted or port.name == wanted)]
    return ports[0].port if len(ports) == 1 else None


def _no_port(settings: KubernetesSettings) -> str:
    if settings.port:
        return f"service {settings.service} has no port named {settings.port} (give its name or number as port)"
    return f"service {settings.service} has several ports or none (give the engine's as port)"
