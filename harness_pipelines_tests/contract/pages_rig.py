"""Two tables over real files and a real Postgres, a `harness serve` over them, and the blocks of pages at it.

A page writes `$HARNESS_URL`, `$HARNESS_TOKEN` and `$HARNESS_FLIGHT`: variables of the environment for a shell and
Python, text that its reader replaces in other languages.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

import harness_pipelines as hp
from harness_pipelines.chaos.processes import environment
from harness_pipelines_tests.contract.cut_rig import CutWorld
from harness_pipelines_tests.contract.keyed_cut_rig import KeyedWorld
from harness_pipelines_tests.contract.stores_rig import RealRig
from harness_pipelines_tests.engines import duckdb_extensions
from harness_pipelines_tests.integration.serve.server import Served, serving
from harness_pipelines_tests.page_code import ENGINES, ROOT, blocks

ORDERS, LAKE, NEWEST = 1237, 411, 733  #: rows of an append table, those in the lake, the last offset of a keyed one
RUN_S = 300.0
_HARNESS = '#!/usr/bin/env bash\nPYTHONPATH="{root}" exec "{python}" -m harness_pipelines.cli.main "$@"\n'


@dataclass
class Shop:
    """`shop.orders` and `shop.customers`, each with rows in the lake and in the buffer, and the server."""

    served: Served
    folder: Path  #: where programs of pages run
    variables: Mapping[str, str] = field(default_factory=dict)  #: those that pages name

    @property
    def extensions(self) -> Path:
        """The folder of DuckDB's extensions."""
        return self.folder / ".duckdb" / "extensions"

    def filled(self, text: str) -> str:
        """*text* with the values of the variables in place of their names."""
        for name, value in self.variables.items():
            text = text.replace(f"${name}", value)
        assert "$HARNESS" not in text, text
        return text

    def environment(self) -> dict[str, str]:
        """What a reader of a page has."""
        found = environment(self.served.settings, **self.variables)
        return {**found, "HOME": str(self.folder), "PATH": f"{self.folder / 'bin'}:{found['PATH']}"}

    def ran(self, *command: str, text: str | None = None, **more: str) -> str:
        """Both outputs of *command*. Raises: AssertionError if it fails."""
        done = subprocess.run(
            command, input=text, cwd=self.folder, env={**self.environment(), **more}, timeout=RUN_S, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{command[0]}: {done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def in_python(self, page: str) -> str:
        """What the Python of a page says, as one program."""
        return self.ran(sys.executable, "-c", "\n".join(blocks(ENGINES / f"{page}.md", "python")))

    def in_shell(self, page: str) -> str:
        """What the commands of a page say, as one script."""
        return self.ran("bash", "-euo", "pipefail", "-c", "\n".join(blocks(ENGINES / f"{page}.md", "sh")))


@contextmanager
def shop_of(rig: RealRig, folder: Path) -> Iterator[Shop]:
    """The tables have 1,237 orders, of which 411 are in the lake's batch view, and customers up to offset 733."""
    orders = CutWorld(rig, folder, table="shop.orders", views="both", layout={"columns": ["id"], "sample": 0})
    orders.ingest({0: 700, 1: 400})
    orders.tier({0: 500, 1: 300})
    orders.merge({0: LAKE - 200, 1: 200})
    orders.ingest({0: ORDERS - 500, 1: 500})
    customers = KeyedWorld(rig, folder, table="shop.customers")
    customers.ingest({0: 300, 1: 300})
    customers.tier({0: 200, 1: 200})
    customers.merge({0: 150, 1: 150})
    customers.ingest({0: NEWEST + 1, 1: NEWEST - 9})
    with serving(hp.Harness(orders.stores), folder, "--flight", "0") as served:
        assert served.flight is not None
        variables = {
            "HARNESS_URL": served.url,
            "HARNESS_TOKEN": served.token,
            "HARNESS_FLIGHT": served.flight.partition("://")[2],
        }
        _make_home(folder)
        yield Shop(served, folder, variables)
    orders.stores.close()
    customers.stores.close()


def _make_home(folder: Path) -> None:
    """What a reader has installed: `harness`, and the extensions of DuckDB, which `INSTALL` finds there."""
    program = folder / "bin" / "harness"
    program.parent.mkdir()
    program.write_text(_HARNESS.format(root=ROOT, python=sys.executable))
    program.chmod(0o755)
    (folder / ".duckdb" / "extensions").mkdir(parents=True)
    for library in duckdb_extensions():
        version = folder / ".duckdb" / "extensions" / library.parent.name / _platform()
        version.mkdir(parents=True, exist_ok=True)
        (version / library.name).symlink_to(library)


def _platform() -> str:
    with duckdb.connect() as connection:
        found = connection.execute("PRAGMA platform").fetchone()
    assert found is not None
    return str(found[0])
