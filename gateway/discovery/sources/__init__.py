"""Where replicas are found: DNS, Kubernetes, a file."""

from gateway.config.discovery_settings import DiscoverSettings
from gateway.discovery.discovered import ReplicaSource


def source_of(settings: DiscoverSettings) -> ReplicaSource:
    """The source of a configuration."""
    if settings.dns is not None:
        from gateway.discovery.sources.dns import DnsSource

        return DnsSource(settings.dns, settings.template)
    if settings.kubernetes is not None:
        from gateway.discovery.sources.kubernetes import KubernetesSource

        return KubernetesSource(settings.kubernetes, settings.template)
    from gateway.discovery.sources.file import FileSource

    assert settings.file is not None
    return FileSource(settings.file.path)
