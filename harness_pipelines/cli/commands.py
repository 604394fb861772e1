"""The sub-commands of `harness`: what each is for, and where it is.

The help lists them from here, so it imports none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SubCommand:
    """A command below `harness`."""

    at: str  #: ``module:name`` below `harness_pipelines.cli`
    about: str  #: one line of the help

    @property
    def module(self) -> str:
        return f"harness_pipelines.cli.{self.at.partition(':')[0]}"

    @property
    def name(self) -> str:
        """Of the command in its module."""
        return self.at.partition(":")[2]


#: Headings of the help, each with its commands, in the order in which they are shown.
SECTIONS: Mapping[str, Mapping[str, SubCommand]] = {
    "Start": {
        "demo": SubCommand("operate.demo:demo", "Move TPC-H rows through a new harness, and prove them."),
        "services": SubCommand("operate.services:services", "Start, show and stop the embedded services."),
        "init": SubCommand("operate.init:init", "Create or update the ledger, the catalog and the roles."),
        "doctor": SubCommand("operate.doctor:doctor", "Check all that this installation needs."),
        "run": SubCommand("operate.run:run", "Run all stages of tables until stopped."),
        "serve": SubCommand("operate.serve:serve", "Let every engine that reads Iceberg read the tables, fresh."),
        "dev": SubCommand("operate.dev:dev", "Open Dagster's UI and the status page."),
    },
    "Tables": {
        "topics": SubCommand("reads.topics:topics", "List topics, their records, and the tables that read them."),
        "peek": SubCommand("reads.topics:peek", "Print the newest records of a topic."),
        "table": SubCommand("tables.table:table", "Propose, create, list, show and drop tables."),
        "evolve": SubCommand("tables.evolve:evolve", "Change the columns of a table in every tier at once."),
        "recluster": SubCommand("tables.recluster:recluster", "Rewrite parts of a batch view in value order."),
        "recall": SubCommand("tables.recall:recall", "Move rows of the lake to Postgres for a burst of updates."),
        "snapshot": SubCommand("tables.snapshot:snapshot", "Create, list and drop named states of tables."),
        "mirror": SubCommand("tables.mirror:mirror", "Show, probe and drop mirrors in foreign catalogs."),
    },
    "Look": {
        "status": SubCommand("reads.status:status", "Show where the records are, lags and workers."),
        "top": SubCommand("reads.status:top", "Watch tables live: rates, lags, refusals, workers."),
        "cost": SubCommand("reads.cost:cost", "Show records, bytes and CPU by day."),
        "layout": SubCommand("reads.layout:layout", "Show how a batch view is clustered."),
        "explain": SubCommand("reads.explain:explain", "Show what a read opens, and which offsets it takes from it."),
        "lineage": SubCommand("reads.lineage:lineage", "Show where a file, a move or a record comes from."),
        "events": SubCommand("reads.events:events", "Print what happened to a table."),
    },
    "Read": {
        "sql": SubCommand("reads.sql:sql", "Run SQL over one consistent cut of tables."),
        "read": SubCommand("reads.read:read", "Print the rows of a table."),
        "get": SubCommand("reads.keyed:get", "Print the newest row of a key."),
        "changes": SubCommand("reads.keyed:changes", "Print the records between two versions."),
        "stream": SubCommand("reads.stream:stream", "Print every record in offset order, then new ones."),
        "state": SubCommand("tables.state:state", "List, show and drop the positions of consumers."),
    },
    "Repair": {
        "quarantine": SubCommand("tables.quarantine:quarantine", "List, show, replay or drop refused records."),
        "replay": SubCommand("tables.replay:replay", "Decode records again and replace rows that differ."),
        "revert": SubCommand("tables.revert:revert", "Publish the lake of an old version as a new one."),
        "reconcile": SubCommand("operate.reconcile:reconcile", "Settle leftovers of crashes and restores."),
        "accept-loss": SubCommand("operate.audit:accept_loss", "Continue after records that Kafka dropped unread."),
    },
    "Prove": {
        "audit": SubCommand("operate.audit:audit", "Prove that every record is in exactly one tier."),
        "fsck": SubCommand("operate.fsck:fsck", "Check every invariant of tables."),
        "chaos": SubCommand("operate.chaos:chaos", "Inject faults while tables move, and judge every read."),
        "bench": SubCommand("operate.bench:bench", "Measure figures and compare them with their goals."),
    },
    "Shell": {
        "completion": SubCommand("operate.completion:completion", "Print the completion script of a shell."),
    },
}
COMMANDS: Mapping[str, SubCommand] = {name: one for section in SECTIONS.values() for name, one in section.items()}
