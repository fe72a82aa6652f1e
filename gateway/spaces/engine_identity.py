"""Which model, in which release, each engine runs; and when that changed. Pure."""

from dataclasses import dataclass

from gateway.core.ids import ModelId, ReplicaId


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """What an engine runs.

    Attributes:
        root: What it was started with, as its ``/v1/models`` tells; empty if unknown.
        version: Its release; empty if unknown.
    """

    root: str = ""
    version: str = ""

    def updated(self, new: "EngineIdentity") -> "EngineIdentity":
        """This, with what the new one knows."""
        return EngineIdentity(new.root or self.root, new.version or self.version)


class EngineIdentities:
    """Tells updates of a model from replicas that simply differ.

    An update rolls through the replicas one after the other, and only the first one that changes ends the model's
    spaces: otherwise every further one would make cold again what the updated ones have just computed.
    """

    def __init__(self) -> None:
        self._of_replica: dict[ReplicaId, EngineIdentity] = {}
        self._of_model: dict[ModelId, EngineIdentity] = {}
        self._unmet: dict[ReplicaId, EngineIdentity] = {}
        """Written down by another process, of replicas that have not joined yet."""
        self._started = False

    def started(self) -> None:
        """All replicas were looked at once: one seen for the first time from now on has joined."""
        self._started = True

    def seen(self, replica: ReplicaId, model: ModelId, identity: EngineIdentity) -> bool:
        """Take note of what a replica runs; returns whether its model was updated."""
        before = self._of_replica.get(replica)
        if before is None and (before := self._unmet.pop(replica, None)) is not None:
            self._of_model.setdefault(model, before)
        present = identity if before is None else before.updated(identity)
        self._of_replica[replica] = present
        newest = self._of_model.get(model)
        if newest is None:
            self._of_model[model] = present
            return False
        if before == present or (before is None and not self._started):
            return False
        completed = newest.updated(present)
        if completed == newest:
            return False
        # A part that was not known before is no change of it.
        changed = any(old and old != new for old, new in zip(_parts(newest), _parts(completed), strict=True))
        self._of_model[model] = completed
        return changed

    def forget(self, replica: ReplicaId) -> None:
        """A replica has left."""
        self._of_replica.pop(replica, None)

    def dump(self) -> dict[str, list[str]]:
        """JSON-ready; for ``load``."""
        # Who has not joined when all have been looked at is not waited for any longer.
        kept = self._of_replica if self._started else self._unmet | self._of_replica
        return {replica: list(_parts(identity)) for replica, identity in kept.items()}

    def load(self, dumped: dict[str, list[str]], models: dict[ReplicaId, ModelId]) -> None:
        """Go on from what another process left.

        Args:
            dumped: What ``dump`` gave.
            models: The model of every replica there is now.

        Raises:
            AttributeError, TypeError, ValueError: it is something else.
        """
        for name, (root, version) in dumped.items():
            replica = ReplicaId(name)
            if not isinstance(root, str) or not isinstance(version, str):
                raise TypeError("a root or a release is no text")
            if replica in models:
                self._of_replica[replica] = EngineIdentity(root, version)
                self._of_model.setdefault(models[replica], EngineIdentity(root, version))
            else:
                self._unmet[replica] = EngineIdentity(root, version)


def _parts(identity: EngineIdentity) -> tuple[str, str]:
    return identity.root, identity.version
