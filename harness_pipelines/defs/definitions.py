"""The entry point for Dagster: one set of definitions for all tables of the ledger.

Without a database (``dg check defs`` in a fresh checkout) there are no tables, and loading still succeeds.
"""

import os
from pathlib import Path

from dagster import Definitions

from harness_pipelines.app.client import connect
from harness_pipelines.defs.build import broken_asset, build
from harness_pipelines.defs.warm import warm_runs
from harness_pipelines.spec.load import load_spec
from harness_pipelines.spec.wording import SpecError

TABLES_FOLDER = "HARNESS_TABLES"  #: a folder of YAML specs to load instead of asking the ledger


def load() -> Definitions:
    """Definitions of the specs in the folder ``HARNESS_TABLES``, else of the ledger's tables.

    None if there is no ledger to ask; one that is away fails the load, which would otherwise end what runs. A file that
    is no spec costs its own table only, and is shown in its place with the reason.
    """
    if folder := os.environ.get(TABLES_FOLDER):
        return _of_folder(Path(folder))
    with connect() as harness:
        if not harness.settings.dsn:
            return build([])
        found, sick = harness.stores.tables.survey()
    broken = [broken_asset(one.name, one.why) for one in sick]
    return Definitions.merge(build([row.spec for row in found]), Definitions(assets=broken))


def _of_folder(folder: Path) -> Definitions:
    specs, broken = [], []
    files: dict[str, str] = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            spec = load_spec(path)
        except SpecError as error:
            broken.append(broken_asset(path.stem, str(error)))
            continue
        if first := files.get(spec.table):
            broken.append(broken_asset(path.stem, f"{path}: {first} has the table {spec.table} already; remove one"))
            continue
        files[spec.table] = path.name
        specs.append(spec)
    return Definitions.merge(build(specs), Definitions(assets=broken))


defs = load()
warm_runs()
