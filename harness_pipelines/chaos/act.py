"""One act that an operator asks for, in a separate process: it can be stopped at a crash point and woken.

Sends the parent what came of it. An act that is refused by name changed nothing, and that is fine.
"""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable, Mapping

import harness_pipelines as hp
from harness_pipelines.audit.repair.reconcile import look, settle
from harness_pipelines.chaos.content import KEYS, LATER, SUBJECTS
from harness_pipelines.chaos.processes import tell
from harness_pipelines.chaos.schedule import Kind
from harness_pipelines.errors import HarnessError
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.show.logs import configure_logging
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.settings import ENGINES
from harness_pipelines.spec.types import Primitive
from harness_pipelines.stages.table.revert import revert_table

SNAPSHOT = "chaos"
REVERTS_OVER = 6  #: versions


def replay(table: hp.Table) -> str:
    done = table.replay()
    return f"{done.replayed} of {done.records} records are rows again"


def revert(table: hp.Table) -> str:
    """To one of the last versions: a second revert may go forward again."""
    retained = [one.version for one in table.versions()][-REVERTS_OVER:-1]
    if not retained:
        return "there is no version to go back to"
    made = revert_table(table.harness.stores, table.row, to=random.choice(retained))
    return f"version {made.version} restores version {made.revert_of}"


def evolve(table: hp.Table) -> str:
    """One of the columns that the table lacks; what has them all gets its first ones in another order."""
    there = [column.name for column in table.spec.columns]
    for name in LATER:
        if name not in there:
            made = table.evolve(ColumnChanges(add=(Column(name=name, type=Primitive("long")),)))
            return f"version {made.version} begins with {name}"
    made = table.evolve(ColumnChanges(order=tuple(reversed(there))))
    return f"version {made.version} begins with another order"


def recall(table: hp.Table) -> str:
    if table.harness.stores.tables.head(table.row).overlays:
        return f"released: {table.release_recalled().state}"
    low = random.randrange(KEYS)
    return f"recalled: {table.recall(f'k >= {low} and k < {low + KEYS // 4}').state}"


def snapshot(table: hp.Table) -> str:
    if any(one.name == SNAPSHOT for one in table.harness.snapshots()):
        table.harness.drop_snapshot(SNAPSHOT)
        return "dropped"
    names = [subject.name(table.name) for subject in SUBJECTS]
    table.harness.snapshot(SNAPSHOT, names)
    return "made"


def apply(table: hp.Table) -> str:
    """The spec as it is now, with one setting changed."""
    spec = table.spec
    age_s = random.choice([1, 2, 3])
    words: dict[str, object] = {"tier": spec.tier.model_copy(update={"max_age": float(age_s)})}
    if spec.views == "batch":
        words = {"unknown_fields": "ignore" if spec.unknown_fields == "quarantine" else "quarantine"}
    table.harness.apply(spec.model_copy(update=words))
    return f"applied {words}"


def switch(table: hp.Table) -> str:
    """The spec as it is now with another engine, while moves of the one before may be under way."""
    word = random.choice([word for word in ENGINES if word != table.spec.engine])
    table.harness.apply(table.spec.model_copy(update={"engine": word}))
    return f"{word} moves it now, after {table.spec.engine}"


def reconcile(table: hp.Table) -> str:
    """What an operator does about a claim of the future while the workers run, and about lost history after they
    stopped."""
    stores = table.harness.stores
    settled = settle(stores, table.row, look(stores, table.row))
    return f"{len(settled.acts)} acts, settled {settled.settled}"


ACTS: Mapping[Kind, Callable[[hp.Table], str]] = {
    Kind.REPLAY: replay,
    Kind.REVERT: revert,
    Kind.EVOLVE: evolve,
    Kind.RECALL: recall,
    Kind.SNAPSHOT: snapshot,
    Kind.APPLY: apply,
    Kind.SWITCH: switch,
    Kind.CLAIM_AHEAD: reconcile,
    Kind.PROMOTE: reconcile,
}


def main() -> None:
    kind, name = sys.argv[1:]
    configure_logging()
    try:
        with hp.connect() as harness:
            tell({"done": ACTS[Kind(kind)](harness.table(name))})
    except HarnessError as error:
        tell({"refused": f"{type(error).__name__}: {error}"})
    except Exception as error:  # an error without a name is a finding
        tell({"unnamed": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()})


if __name__ == "__main__":
    main()
