"""The schema registry: whether it answers, and lets this login in."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from harness_pipelines.app.doctor.check import Check, Finding, Notes
from harness_pipelines.sources.registry import RegistryAddress
from harness_pipelines.spec.settings import Settings

#: A schema that any registry in use has. Whether this one has it does not matter: it must say so.
ANY_SCHEMA = 1


def registry(settings: Settings) -> list[Check]:
    """One check, by the client and the properties that decode records."""
    return [Check(system="registry", name="schema registry", look=partial(_look, settings=settings))]


def _look(notes: Notes, *, settings: Settings) -> Iterator[Finding]:
    """Ask for a schema. Raises: RegistryAway, RegistryLoginFailed, CertificateRefused, ExtraMissing."""
    name = "schema registry"
    if settings.registry is None:
        yield notes.skipped(name, "HARNESS_REGISTRY is not set; only formats with a registry need it")
        return
    opened = RegistryAddress.of(settings).open()
    try:
        opened.by_id(ANY_SCHEMA)
    finally:
        opened.close()
    login = settings.registry_properties.get("basic.auth.user.info", "").partition(":")[0]
    who = f"{login} was let in" if login else "it asks for no login, or takes the one that is set"
    yield notes.ok(name, f"{settings.registry} answers; {who}")
