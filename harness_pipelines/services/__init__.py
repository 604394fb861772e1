"""Embedded PostgreSQL, Kafka and Spark Connect for one machine, with all state in one home folder."""

from harness_pipelines.services.base import ServiceDied, ServicesBusy, ServicesError, ToolMissing
from harness_pipelines.services.manager import Services
from harness_pipelines.services.values import SERVICE_NAMES, Endpoints, ServiceName, ServiceState, ServiceStatus

__all__ = [
    "SERVICE_NAMES",
    "Endpoints",
    "ServiceDied",
    "ServiceName",
    "ServiceState",
    "ServiceStatus",
    "Services",
    "ServicesBusy",
    "ServicesError",
    "ToolMissing",
]
