"""Replicas from DNS: one for each address, or for each SRV record, of a name that is looked up periodically."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import dns.asyncresolver
import dns.exception
import dns.nameserver
import dns.resolver

from gateway.config.discovery_settings import DnsSettings, TemplateSettings, name_server
from gateway.config.replica_settings import ReplicaSettings
from gateway.discovery.discovered import DiscoveredReplica, SourceFailed, replica_at

_LOOK_SECONDS = 5.0
"""Limit for one look-up, with every name server tried."""

_SHORTEST_SECONDS = 1.0
_FAMILIES = ("A", "AAAA")


class DnsSource:
    """A ``ReplicaSource``.

    Args:
        settings: The name to look up.
        template: Settings of the replicas besides their address.
    """

    def __init__(self, settings: DnsSettings, template: TemplateSettings) -> None:
        self._settings = settings
        self._template = template
        self._addresses: dict[str, Sequence[str]] = {}

    async def answers(self) -> AsyncGenerator[Sequence[DiscoveredReplica], None]:
        """See ``ReplicaSource``."""
        while True:
            replicas, kept_seconds = await (self._services() if self._settings.srv else self._hosts())
            yield [DiscoveredReplica(replica) for replica in sorted(replicas, key=lambda replica: replica.id)]
            await asyncio.sleep(max(min(kept_seconds, self._settings.interval_seconds), _SHORTEST_SECONDS))

    async def _hosts(self) -> tuple[list[ReplicaSettings], float]:
        """One replica for each address. Where only one family can be looked up, the other's stay as they were."""
        assert self._settings.port is not None
        looks = await asyncio.gather(*map(self._family, _FAMILIES), return_exceptions=True)
        failures = [look for look in looks if isinstance(look, BaseException)]
        if len(failures) == len(looks) or any(not isinstance(failure, SourceFailed) for failure in failures):
            raise failures[0]
        kept = [look for look in looks if not isinstance(look, BaseException)]
        addresses = [address for family in _FAMILIES for address in self._addresses.get(family, ())]
        return [self._at(address, self._settings.port) for address in addresses], min(kept)

    async def _family(self, family: str) -> float:
        """Look up the addresses of one family; returns how long they may be kept."""
        answer = await self._ask(self._settings.name, family)
        rrset = answer.rrset if answer is not None else None
        self._addresses[family] = [record.address for record in rrset or ()]
        return self._kept_seconds(answer)

    async def _services(self) -> tuple[list[ReplicaSettings], float]:
        """One replica for each record; their priorities and weights are ignored."""
        answer = await self._ask(self._settings.srv, "SRV")
        rrset = answer.rrset if answer is not None else None
        targets = {(record.target.to_text(omit_final_dot=True), record.port) for record in rrset or ()}
        # A lone dot as the target means that there is no such service.
        replicas = [self._at(host, port) for host, port in targets if host not in ("", ".")]
        return replicas, self._kept_seconds(answer)

    def _at(self, host: str, port: int) -> ReplicaSettings:
        return replica_at(self._template, scheme=self._settings.scheme, host=host, port=port)

    def _kept_seconds(self, answer: dns.resolver.Answer | None) -> float:
        return self._settings.interval_seconds if answer is None else answer.chaining_result.minimum_ttl

    async def _ask(self, name: str, kind: str) -> dns.resolver.Answer | None:
        """The records of a name; None if there is no such name."""
        try:
            resolver = dns.asyncresolver.Resolver(configure=not self._settings.server)
            if self._settings.server:
                resolver.nameservers = [dns.nameserver.Do53Nameserver(*name_server(self._settings.server))]
            return await resolver.resolve(name, kind, search=True, raise_on_no_answer=False, lifetime=_LOOK_SECONDS)
        except dns.resolver.NXDOMAIN:
            return None
        except (dns.exception.DNSException, OSError) as error:
            raise SourceFailed(f"{name} ({kind}) cannot be looked up: {error}") from error
