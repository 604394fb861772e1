"""Exactly-once tables over Kafka, Postgres and Iceberg.

    with harness_pipelines.connect() as harness:       # HARNESS_DSN, HARNESS_KAFKA, ... or the embedded services
        orders = harness.apply("orders.yaml")          # or `harness.table("shop.orders")`
        orders.read(columns=["order_id"], where="amount > 10")  # pyarrow.Table
        orders.to_spark(spark, view="orders")          # the same rows as a DataFrame

Every error is a `HarnessError`. After a `TryAgain` repeat the same call. After an `OutcomeUnknown` check the ledger
first.
"""

from typing import TYPE_CHECKING, Any

from harness_pipelines.errors import HarnessError, OutcomeUnknown, Recovery, TryAgain, UsageError

if TYPE_CHECKING:
    from harness_pipelines.app.client import Harness, connect
    from harness_pipelines.app.table import Table
    from harness_pipelines.protocol.changes.corrections import Wanted
    from harness_pipelines.spec.settings import Settings
    from harness_pipelines.spec.table import TableSpec
    from harness_pipelines.stages.run.own_mover import Moved

_HOMES = {
    "Harness": "harness_pipelines.app.client",
    "Moved": "harness_pipelines.stages.run.own_mover",
    "Settings": "harness_pipelines.spec.settings",
    "Table": "harness_pipelines.app.table",
    "TableSpec": "harness_pipelines.spec.table",
    "Wanted": "harness_pipelines.protocol.changes.corrections",
    "connect": "harness_pipelines.app.client",
}


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that the command line starts fast."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, whether they were used yet or not."""
    return sorted(__all__)


__all__ = [
    "Harness",
    "HarnessError",
    "Moved",
    "OutcomeUnknown",
    "Recovery",
    "Settings",
    "Table",
    "TableSpec",
    "TryAgain",
    "UsageError",
    "Wanted",
    "connect",
]
