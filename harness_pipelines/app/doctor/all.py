"""Which checks an installation has."""

from __future__ import annotations

from harness_pipelines.app.doctor.check import Check, DoctorReport, examine
from harness_pipelines.app.doctor.dagster import dagster
from harness_pipelines.app.doctor.kafka import kafka
from harness_pipelines.app.doctor.machine import machine
from harness_pipelines.app.doctor.postgres import postgres
from harness_pipelines.app.doctor.registry import registry
from harness_pipelines.app.doctor.spark import spark
from harness_pipelines.app.doctor.warehouse import warehouse
from harness_pipelines.drivers.object_stores.bound import BOUND
from harness_pipelines.services import Services, ServicesError
from harness_pipelines.spec.settings import Settings


def diagnose(settings: Settings) -> DoctorReport:
    """Look at everything that *settings* and the embedded services name. Changes nothing but the files of its probe."""
    services = Services.from_settings(settings)
    try:
        filled = services.current().fill(settings)
    except ServicesError:  # the check of the services says why
        filled = settings
    BOUND.bind(filled.warehouse, filled.s3)
    return examine(checks(settings, filled, services))


def checks(settings: Settings, filled: Settings, services: Services) -> list[Check]:
    """All checks; *filled* is *settings* with the addresses of embedded services that run."""
    return [
        *machine(settings, services),
        *postgres(filled),
        *kafka(filled),
        *registry(filled),
        *warehouse(filled),
        *spark(filled),
        *dagster(filled),
    ]


def warehouse_report(settings: Settings) -> DoctorReport:
    """The look at the store alone, which `harness init` takes."""
    BOUND.bind(settings.warehouse, settings.s3)
    return examine(warehouse(settings))
