"""Plans which prefixes are sent to which replicas and ranks."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import structlog

from gateway.admission import Authenticator
from gateway.core.application import Application
from gateway.core.ids import ModelId, ReplicaId, Target, TenantId
from gateway.core.request import ChatRequest
from gateway.core.tenant import EVERYBODY, Caller, Tenant
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica import Replica
from gateway.warmup.declared import Declared, Location, Malformed

_log = structlog.get_logger("gateway.warmup")


@dataclass(frozen=True, slots=True)
class WarmupStep:
    """One request to send.

    Attributes:
        index: Index of its prefix in the list; None for one of the hottest.
        prefix: The prefix.
        caller: The caller on whose behalf it is sent.
        target: Replica and rank.
        like: A client's request without its content, which the request resembles in everything else; None for a
            declared prefix.
    """

    index: int | None
    prefix: Declared
    caller: Caller
    target: Target
    like: ChatRequest | None = None


@dataclass(frozen=True, slots=True)
class WarmupPlan:
    """The requests of an order.

    Attributes:
        steps: The requests; not empty.
        down: Replicas that are skipped because they are down or drain.
    """

    steps: Sequence[WarmupStep]
    down: Sequence[ReplicaId]


InApplication = Callable[[Caller, str], Caller]


def unregistered(caller: Caller, application: str) -> Caller:
    """A caller in an application where none is registered; named as ``id@version`` or ``id``."""
    prompt_id, _, version = application.partition("@")
    return dataclasses.replace(caller, application=Application(prompt_id, version))


class Planner:
    """Plans requests.

    Args:
        fleet: The replicas.
        tenants: The tenants.
        isolated: Whether prefixes are separated by tenant.
        discovered: Returns the models whose replicas are discovered at run time and thus vary.
        in_application: Returns a caller in an application that a prefix names; raises ``Malformed`` for one that
            cannot be named.
    """

    def __init__(
        self,
        fleet: Fleet,
        tenants: Authenticator,
        isolated: Callable[[], bool],
        discovered: Callable[[], Collection[ModelId]] = tuple,
        in_application: InApplication = unregistered,
    ) -> None:
        self._fleet = fleet
        self._tenants = tenants
        self._isolated = isolated
        self._discovered = discovered
        self._in_application = in_application

    def check(self, prefix: Declared) -> Caller:
        """The caller on whose behalf a prefix is sent.

        Raises:
            Malformed: its model, its tenant or one of its replicas does not exist, or its tenant may not use a replica.
        """
        caller = self._caller(prefix)
        discovered = prefix.model in self._discovered()
        known = {replica.id: replica for replica in self._fleet.replicas}
        for name in sorted(prefix.replicas or ()):
            replica = known.get(name)
            if replica is None and discovered:
                continue
            if replica is None or replica.model != prefix.model:
                names = ", ".join(replica.id for replica in known.values() if replica.model == prefix.model)
                message = f"no replica {name!r} serves {prefix.model!r}. Those that do: {names}."
                raise Malformed(("replicas",), message, "unknown_replica")
            if not _admits(caller.tenant, replica):
                message = f"{name} is not in a region of its tenant: {_regions(caller.tenant)}."
                raise Malformed(("replicas",), message, "region_not_allowed")
        return caller

    def order(self, prefixes: Sequence[Declared], only: frozenset[ReplicaId] | None) -> WarmupPlan:
        """Plan an order with prefixes.

        Args:
            prefixes: The prefixes to send.
            only: The replicas to warm up; None: all. A prefix whose model none of them serves is skipped.

        Raises:
            Malformed: something does not exist or is down, or there is nothing to send; with the location in the order.
        """
        self._check_known(only)
        steps: list[WarmupStep] = []
        down: dict[ReplicaId, None] = {}
        for index, prefix in enumerate(prefixes):
            steps += self._ordered(index, prefix, only, down)
        if not steps:
            raise Malformed(("replicas",), "none of them serves the model of any of the prefixes.", "nothing_to_send")
        return WarmupPlan(steps, list(down))

    def registered(self, prefixes: Sequence[Declared]) -> WarmupPlan | None:
        """Plan to send prefixes of registered prompts to all replicas that are up.

        Unlike in an order, a prefix that cannot be sent is logged and skipped, and the others are sent.

        Returns:
            None if there is nothing to send.
        """
        steps: list[WarmupStep] = []
        down: dict[ReplicaId, None] = {}
        for index, prefix in enumerate(prefixes):
            try:
                steps += self._ordered(index, prefix, None, down)
            except Malformed as error:
                _log.warning("warming_prompt_left_out", prompt=prefix.application, problem=error.message)
        return WarmupPlan(steps, list(down)) if steps else None

    def declared(self, prefixes: Sequence[Declared], only: frozenset[ReplicaId] | None) -> WarmupPlan:
        """Plan an order for the prefixes declared in the configuration.

        As for a joined replica, prefixes that can no longer be sent are skipped.

        Args:
            prefixes: The declared prefixes.
            only: The replicas to warm up; None: all that are up.

        Raises:
            Malformed: a replica does not exist or is down, or there is nothing to send.
        """
        if not prefixes:
            message = "nothing is declared: name a file of prefixes as warm.file in the configuration"
            raise Malformed(("declared",), message, "nothing_declared")
        self._check_known(only)
        steps: list[WarmupStep] = []
        down: list[ReplicaId] = []
        for replica in self._fleet.replicas:
            if only is not None and replica.id not in only:
                continue
            own = self.joined(prefixes, replica.id)
            if _accepts_requests(replica):
                steps += own
            elif only is not None:
                raise _unavailable(replica, ("replicas",))
            elif own:
                down.append(replica.id)
        if not steps:
            raise Malformed(("declared",), "no replica is up that any of it could be sent to.", "nothing_to_send")
        return WarmupPlan(steps, down)

    def joined(self, prefixes: Sequence[Declared], replica_id: ReplicaId) -> Sequence[WarmupStep]:
        """Plan the warm-up of a joined replica. Prefixes that can no longer be sent are logged and skipped."""
        replica = next((replica for replica in self._fleet.replicas if replica.id == replica_id), None)
        steps: list[WarmupStep] = []
        for index, prefix in enumerate(prefixes):
            if replica is None or prefix.model != replica.model or not replica.serves():
                continue
            if prefix.replicas is not None and replica_id not in prefix.replicas:
                continue
            try:
                caller = self._caller(prefix)
            except Malformed as error:
                _log.warning("warming_prefix_left_out", index=index, problem=error.message)
                continue
            if _admits(caller.tenant, replica):
                steps += [WarmupStep(index, prefix, caller, target) for target in replica.targets]
        return steps

    def everywhere(self, prefixes: Sequence[Declared]) -> Sequence[WarmupStep]:
        """Plan to send prefixes to every replica that takes requests, as each one gets them when it joins."""
        return [
            step
            for replica in self._fleet.replicas
            if _accepts_requests(replica)
            for step in self.joined(prefixes, replica.id)
        ]

    def accepts(self, caller: Caller, model: ModelId, target: Target) -> bool:
        """Whether a target is there and takes requests of a model on behalf of a caller."""
        return any(
            replica.id == target.replica
            and replica.model == model
            and _accepts_requests(replica)
            and target in replica.targets
            and _admits(caller.tenant, replica)
            for replica in self._fleet.replicas
        )

    def present(self, caller: Caller) -> Caller | None:
        """A caller of an earlier request with the present settings of its tenant and its application; None if one of
        them does not exist now."""
        tenant = self._tenants.tenant(caller.tenant.id)
        if tenant is None and caller.tenant.id != EVERYBODY.tenant.id:
            return None
        present = dataclasses.replace(caller, tenant=tenant or EVERYBODY.tenant, application=None)
        if caller.application is None:
            return present
        try:
            return self._in_application(present, caller.application.name)
        except Malformed:
            return None

    def _caller(self, prefix: Declared) -> Caller:
        models = dict.fromkeys([*(replica.model for replica in self._fleet.replicas), *self._discovered()])
        if prefix.model not in models:
            message = f"this model does not exist here. Known models: {', '.join(models)}."
            raise Malformed(("model",), message, "model_not_found")
        caller = Caller(self._tenant(prefix.tenant), scope=prefix.scope)
        return self._in_application(caller, prefix.application) if prefix.application else caller

    def _ordered(
        self, index: int, prefix: Declared, only: frozenset[ReplicaId] | None, down: dict[ReplicaId, None]
    ) -> list[WarmupStep]:
        """The requests for one prefix of an order. Adds replicas that are skipped to ``down``.

        Raises:
            Malformed: see ``order``.
        """
        try:
            caller = self.check(prefix)
            chosen = self._chosen(prefix, caller, only)
        except Malformed as error:
            raise error.within("prefixes", index) from None
        steps: list[WarmupStep] = []
        named = only is not None or prefix.replicas is not None
        for replica in chosen:
            if _accepts_requests(replica):
                steps += [WarmupStep(index, prefix, caller, target) for target in replica.targets]
            elif named:
                where = ("replicas",) if only is not None else ("prefixes", index, "replicas")
                raise _unavailable(replica, where)
            else:
                down[replica.id] = None
        if chosen and not any(_accepts_requests(replica) for replica in chosen):
            message = f"no replica of {prefix.model!r} that it could be sent to is up."
            raise Malformed(("prefixes", index, "model"), message, "no_replica")
        return steps

    def _check_known(self, names: frozenset[ReplicaId] | None) -> None:
        known = [replica.id for replica in self._fleet.replicas]
        for name in sorted(names or ()):
            if name not in known:
                message = f"there is no replica {name!r}. Known replicas: {', '.join(known)}."
                raise Malformed(("replicas",), message, "unknown_replica")

    def _chosen(self, prefix: Declared, caller: Caller, only: frozenset[ReplicaId] | None) -> list[Replica]:
        requested = [
            replica
            for replica in self._fleet.replicas
            if replica.model == prefix.model
            and (prefix.replicas is None or replica.id in prefix.replicas)
            and (only is None or replica.id in only)
        ]
        allowed = [replica for replica in requested if _admits(caller.tenant, replica)]
        if requested and not allowed:
            message = f"{_names(requested)}: not in a region of its tenant: {_regions(caller.tenant)}."
            raise Malformed(("tenant",), message, "region_not_allowed")
        return allowed

    def _tenant(self, name: str | None) -> Tenant:
        if name is None:
            if self._isolated():
                message = "required, because tenants have prefixes of their own: say whose cache it is for"
                raise Malformed(("tenant",), message, "missing_required_parameter")
            return self._tenants.tenant(EVERYBODY.tenant.id) or EVERYBODY.tenant
        tenant = self._tenants.tenant(TenantId(name))
        if tenant is None:
            raise Malformed(("tenant",), f"there is no tenant {name!r}.", "unknown_tenant")
        return tenant


def _accepts_requests(replica: Replica) -> bool:
    return bool(replica.up) and not replica.draining and replica.serves()


def _unavailable(replica: Replica, where: Location) -> Malformed:
    if replica.up:
        return Malformed(where, f"{replica.id} drains; nothing was sent.", "replica_draining")
    return Malformed(where, f"{replica.id} is down; nothing was sent.", "replica_down")


def _admits(tenant: Tenant, replica: Replica) -> bool:
    return not tenant.regions or replica.region in tenant.regions


def _regions(tenant: Tenant) -> str:
    return ", ".join(sorted(tenant.regions))


def _names(replicas: Iterable[Replica]) -> str:
    return ", ".join(replica.id for replica in replicas)
