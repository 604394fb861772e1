"""One look at the tables of an installation, and at the servers that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness_pipelines.show.status import KafkaEnds, TableSeen, look_at_all

if TYPE_CHECKING:
    from harness_pipelines.app.client import Harness
    from harness_pipelines.app.health import Health
    from harness_pipelines.ports.ledger import SickTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at the tables."""

    tables: Sequence[TableSeen]
    sick: Sequence[SickTable]
    kafka: str | None  #: why it is not known where the topics end
    silent: Mapping[str, str]  #: servers that do not answer

    def to_json(self) -> dict[str, Any]:
        sick = [{"table": one.name, "why": one.why} for one in self.sick]
        return {
            "tables": [one.to_json() for one in self.tables],
            "sick": sick,
            "kafka": self.kafka,
            "silent": dict(self.silent),
        }

    @property
    def troubles(self) -> list[str]:
        away = [f"harness: {name} does not answer: {why}" for name, why in self.silent.items()]
        return [*away, *([f"harness: without Kafka: {self.kafka}"] if self.kafka else [])]


def look_at(harness: Harness, health: Health, tables: tuple[str, ...]) -> Look:
    """Look at *tables*, or at all of them without any; those in trouble come first. Raises: TableUnknown."""
    kafka = KafkaEnds(harness)
    health.begin()
    found, sick = harness.survey(tables or None)
    for name in set(tables) - {one.name for one in found} - {one.name for one in sick}:
        harness.table(name)  # which says that there is none, with the most similar names
    if tables:
        found.sort(key=lambda one: tables.index(one.name))
    seen, unread = look_at_all(harness, found, kafka)
    silent = {name: why for name, why in health.look().items() if why is not None}
    seen.sort(key=lambda one: one.state is None)  # what is wrong comes first
    return Look(tables=seen, sick=[*sick, *unread], kafka=kafka.trouble, silent=silent)
