"""Prefix Gateway: an OpenAI-compatible gateway that keeps prompt prefixes warm. See docs/architecture.md."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("prefix-gateway")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0+unknown"
