"""Facts about the engines, one module each: metric names, usage fields. A new version is one file's work."""

from gateway.vendors.engines import parse_metrics, parse_usage
from gateway.vendors.stream import payloads

__all__ = ["parse_metrics", "parse_usage", "payloads"]
