"""Metrics, logs, the audit log and traces.

In: settlements, refusals and events, through the observer ports of ``core``. Out: Prometheus metrics (``catalog``,
``metrics``), log lines (``logs``), audit lines (``audit``) and OpenTelemetry spans (``tracing``). Start
with ``metrics`` and ``catalog``.
"""

from gateway.telemetry.audit import AuditLog, check_writable
from gateway.telemetry.catalog import MetricCatalog
from gateway.telemetry.logs import RequestLog, configure_logs
from gateway.telemetry.metrics import MetricsObserver, ReplicaGauges, set_replica_gauges
from gateway.telemetry.predictions import RecentPredictions
from gateway.telemetry.tracing.request_trace import Trace
from gateway.telemetry.tracing.sampling import Tracing, start_tracing

__all__ = [
    "AuditLog",
    "MetricCatalog",
    "MetricsObserver",
    "RecentPredictions",
    "ReplicaGauges",
    "RequestLog",
    "Trace",
    "Tracing",
    "check_writable",
    "configure_logs",
    "set_replica_gauges",
    "start_tracing",
]
