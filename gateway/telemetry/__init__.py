"""Metrics and logs."""

from gateway.telemetry.catalog import Catalog
from gateway.telemetry.logs import configure_logs
from gateway.telemetry.metrics import MetricsObserver, ReplicaGauges, set_replica_gauges
from gateway.telemetry.requestlog import RequestLog

__all__ = ["Catalog", "MetricsObserver", "ReplicaGauges", "RequestLog", "configure_logs", "set_replica_gauges"]
