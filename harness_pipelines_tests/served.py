"""A catalog for tests of the server: tables in memory, tokens that the test gives, and the application over them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from starlette.testclient import TestClient

from harness_pipelines.ports.ledger import TableUnknown
from harness_pipelines.ports.serving.scans import ScanOfUnknown, ScanWanted
from harness_pipelines.serve.app import Application
from harness_pipelines.serve.auth import KnownTokens, Principal
from harness_pipelines.serve.storage import Storage
from harness_pipelines.serve.values import CutAnswer, Warehouse

ALL, SHOP = "token-of-all", "token-of-the-shop"
ORDERS = "/v1/namespaces/shop/tables/orders"
AT = datetime(2026, 1, 2, tzinfo=UTC)


def cut_of(name: str, snapshot_id: int = 7) -> CutAnswer:
    metadata = json.dumps({"format-version": 2, "of": name, "current-snapshot-id": snapshot_id}).encode()
    location = f"file:///lake/{name}/{snapshot_id}.metadata.json"
    return CutAnswer(snapshot_id=snapshot_id, metadata_location=location, metadata=metadata)


class MemoryCatalog:
    """Answers from `cuts`; an exception among them is raised."""

    def __init__(self, cuts: Mapping[str, CutAnswer | Exception]) -> None:
        self.cuts, self.keys = dict(cuts), Storage()
        self.scans: list[tuple[str, ScanWanted]] = []
        self.named: dict[str, Sequence[str]] = {}  #: names of tables by that of a snapshot
        self.asked: list[tuple[str, str]] = []  #: names and prefixes of loads
        self.reports: list[tuple[str, int]] = []  #: names and snapshots
        self.trouble: Exception | None = None  #: of every call
        self.go_on = threading.Event()  #: loads wait for it
        self.go_on.set()
        self.arrived = threading.Semaphore(0)  #: released by each load

    def names(self, warehouse: Warehouse) -> Sequence[str]:
        if self.trouble:
            raise self.trouble
        return [name for name in self.cuts if not warehouse.snapshot or name in self.named.get(warehouse.snapshot, ())]

    def cut(self, name: str, warehouse: Warehouse) -> CutAnswer:
        self.asked.append((name, warehouse.prefix))
        self.arrived.release()
        assert self.go_on.wait(60)
        if self.trouble:
            raise self.trouble
        found = self.cuts.get(name, TableUnknown(f"no table {name!r}; tables: {', '.join(self.cuts)}"))
        if isinstance(found, Exception):
            raise found
        return replace(found, storage=self.keys)

    def storage(self, name: str) -> Storage:
        self.cut(name, Warehouse())
        return self.keys

    def scan(self, name: str, warehouse: Warehouse, wanted: ScanWanted) -> Mapping[str, Any]:
        self.scans.append((name, wanted))
        cut = self.cut(name, warehouse)
        if wanted.snapshot_id not in (None, cut.snapshot_id):
            raise ScanOfUnknown(f"{name} has no snapshot {wanted.snapshot_id}")
        return {"status": "completed", "delete-files": [], "file-scan-tasks": []}

    def reported(self, name: str, snapshot_id: int) -> bool:
        cut = self.cuts.get(name)
        if cut is None:
            raise TableUnknown(f"no table {name!r}")
        self.reports.append((name, snapshot_id))
        return isinstance(cut, CutAnswer) and cut.snapshot_id == snapshot_id


class MemoryTokens:
    """Knows the tokens of *principals*; counts for how many it is asked, and by how many questions."""

    def __init__(self, principals: Mapping[str, Principal] | None = None) -> None:
        self.principals = dict(principals or {ALL: everything(), SHOP: of_shop()})
        self.asked = self.questions = 0
        self.trouble: Exception | None = None

    def check(self, secrets: Sequence[str]) -> Sequence[Principal | None]:
        self.questions += 1
        self.asked += len(secrets)
        if self.trouble:
            raise self.trouble
        return [self.principals.get(secret) for secret in secrets]


class MemoryFacts:
    """What the status page shows of tables by name; an exception in its place is raised."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.trouble: Exception | None = None

    def status(self, opened: str | None, *, sees: Callable[[str], bool], drawn: str | None) -> Mapping[str, Any]:
        if self.trouble:
            raise self.trouble
        return {"tables": [{"table": name} for name in self.names if sees(name)], "open": opened, "drawn": drawn}


def everything() -> Principal:
    return Principal(name="everything", globs=("*",))


def of_shop() -> Principal:
    return Principal(name="shop", globs=("shop.*",))


def application(catalog: MemoryCatalog, tokens: MemoryTokens | None = None, **options: Any) -> Application:
    checked = KnownTokens(tokens or MemoryTokens())
    return Application(catalog, checked, **{"local_only": True, **options})


def login(secret: str = ALL) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def client_of(app: Application, secret: str | None = ALL) -> TestClient:
    return TestClient(app, base_url="http://localhost", headers=login(secret) if secret else {})


def error(answer: Any) -> tuple[int, str]:
    """Status and type of an error, which the body has in the protocol's form; *answer* is of any client's kind."""
    content = answer.json()["error"]
    assert set(content) == {"message", "type", "code"}
    assert content["code"] == answer.status_code
    assert content["message"]
    return answer.status_code, content["type"]
