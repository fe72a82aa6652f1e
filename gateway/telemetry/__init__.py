"""Metrics, logs and the audit log."""

from gateway.telemetry.audit import AuditLog, check_writable
from gateway.telemetry.catalog import Catalog
from gateway.telemetry.logs import configure_logs
from gateway.telemetry.metrics import MetricsObserver, ReplicaGauges, set_replica_gauges
from gateway.telemetry.requestlog import RequestLog

__all__ = [
    "AuditLog",
    "Catalog",
    "MetricsObserver",
    "ReplicaGauges",
    "RequestLog",
    "check_writable",
    "configure_logs",
    "set_replica_gauges",
]
