"""From an address that a source tells to the settings of a replica."""

from pydantic import ValidationError

from gateway.config.discovery_settings import HOST, ZONE, TemplateSettings
from gateway.config.replica_settings import ReplicaSettings
from gateway.discovery.discovered import SourceFailed


def replica_at(
    template: TemplateSettings, *, scheme: str, host: str, port: int, name: str | None = None, zone: str = ""
) -> ReplicaSettings:
    """The replica at an address.

    Args:
        template: What all replicas of its source have.
        scheme: ``http`` or ``https``.
        host: Its address, or a name that leads there.
        port: Where its engine listens.
        name: Its id; None for its address.
        zone: Where its platform says it is; empty if it does not.

    Raises:
        SourceFailed: what the source told is no address.
    """
    host = f"[{host}]" if ":" in host else host
    told = {
        "url": f"{scheme}://{host}:{port}",
        "id": name,
        "api_key": template.api_key,
        "region": zone if template.region == ZONE else template.region,
        "events": template.events.replace(HOST, host),
        "replay": None if template.replay is None else template.replay.replace(HOST, host),
    }
    try:
        return ReplicaSettings.model_validate(told)
    except ValidationError as invalid:
        problems = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in invalid.errors())
        raise SourceFailed(f"{host}:{port} cannot be used: {problems}") from None
