"""Where replicas are found: DNS, Kubernetes, a file."""

from gateway.discovery.found import Source
from gateway.discovery.settings import DiscoverSettings


def source_of(settings: DiscoverSettings) -> Source:
    """The source that a configuration means."""
    if settings.dns is not None:
        from gateway.discovery.sources.names import DnsSource

        return DnsSource(settings.dns, settings.template)
    if settings.kubernetes is not None:
        from gateway.discovery.sources.kubernetes import KubernetesSource

        return KubernetesSource(settings.kubernetes, settings.template)
    from gateway.discovery.sources.listed import FileSource

    assert settings.file is not None
    return FileSource(settings.file.path)
