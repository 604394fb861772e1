"""The routes of Iceberg's REST protocol, as engines ask for them.

Names are compared with the form that names of tables have before the ledger is asked: whatever a client writes in
their place, a namespace of several levels too, is a name that does not exist.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from urllib.parse import quote

import orjson
from starlette.responses import Response

from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.ledger import TableUnknown
from harness_pipelines.ports.serving.scans import ScanOfUnknown
from harness_pipelines.serve import answers, audit_log
from harness_pipelines.serve.answers import Refused, answer, bad_request, no_such_namespace, no_such_table, shown
from harness_pipelines.serve.auth import visible
from harness_pipelines.serve.metrics import ServeMetrics
from harness_pipelines.serve.requests import READS, Asked, body_of, scan_wanted
from harness_pipelines.serve.turns import Turns, turn_of
from harness_pipelines.serve.values import Catalog, Warehouse, table_name

REPORT_BYTES_MAX = PLAN_BYTES_MAX = 1024 * 1024
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_NAMESPACE = "/v1/{prefix}/namespaces/{namespace}"
#: What clients ask only if it is named here. Single views are not: each query would look for one first.
ENDPOINTS = (
    "GET /v1/{prefix}/namespaces",
    f"GET {_NAMESPACE}",
    f"HEAD {_NAMESPACE}",
    f"GET {_NAMESPACE}/tables",
    f"GET {_NAMESPACE}/tables/{{table}}",
    f"HEAD {_NAMESPACE}/tables/{{table}}",
    f"GET {_NAMESPACE}/tables/{{table}}/credentials",
    f"POST {_NAMESPACE}/tables/{{table}}/metrics",
    f"GET {_NAMESPACE}/views",
)
PLAN = f"POST {_NAMESPACE}/tables/{{table}}/plan"
Handler = Callable[[Asked], Awaitable[Response]]


class Routes:
    """Answers requests of clients whose token is good, from one catalog."""

    def __init__(self, catalog: Catalog, metrics: ServeMetrics, *, plans: bool = False) -> None:
        self._catalog, self._metrics, self._plans = catalog, metrics, plans
        self._turns = Turns()

    def find(self, method: str, parts: list[str]) -> tuple[str, Warehouse, Handler]:
        """The name of the route below ``/v1``, the state that its prefix names, and what answers.

        Raises: Refused with 404 for a path that is none, 403 for a write, 405 for a method that is neither.
        """
        warehouse, rest = _prefix(parts)
        found = self._posted(rest) if method == "POST" else self._read(rest) if method in READS else None
        if found is not None:
            return found[0], warehouse, found[1]
        if method in WRITES:
            raise answers.read_only()
        if method not in READS:
            raise Refused(405, "BadRequestException", f"method {shown(method)}", {"allow": "GET, HEAD, POST"})
        raise Refused(404, "NotFoundException", f"no such path: /{shown('/'.join(('v1', *parts)))}")

    def _posted(self, rest: list[str]) -> tuple[str, Handler] | None:
        match rest:
            case ["namespaces", namespace, "tables", table, "metrics"]:
                return "report", lambda asked: self._report(asked, namespace, table)
            case ["namespaces", namespace, "tables", table, "plan"]:
                return "plan", lambda asked: self._plan(asked, namespace, table)
        return None

    def _read(self, rest: list[str]) -> tuple[str, Handler] | None:
        match rest:
            case ["config"]:
                return "config", self._config
            case ["namespaces"]:
                return "namespaces", self._namespaces
            case ["namespaces", namespace]:
                return "namespace", lambda asked: self._namespace(asked, namespace)
            case ["namespaces", namespace, "tables"]:
                return "tables", lambda asked: self._tables(asked, namespace)
            case ["namespaces", namespace, "tables", table]:
                return "table", lambda asked: self._table(asked, namespace, table)
            case ["namespaces", namespace, "tables", table, "credentials"]:
                return "credentials", lambda asked: self._credentials(asked, namespace, table)
            case ["namespaces", namespace, "views"]:
                return "views", lambda asked: self._views(asked, namespace)
            case ["namespaces", namespace, "views", view]:
                return "view", lambda asked: self._view(asked, namespace, view)
        return None

    async def _config(self, asked: Asked) -> Response:
        """The prefix is an override, so that no client's own setting replaces the state that it asked for."""
        warehouse = Warehouse.parse(asked.option("warehouse") or "")
        overrides = {"prefix": warehouse.prefix} if warehouse.prefix else {}
        endpoints = [*ENDPOINTS, PLAN] if self._plans else list(ENDPOINTS)
        return answer({"defaults": {}, "overrides": overrides, "endpoints": endpoints})

    async def _namespaces(self, asked: Asked) -> Response:
        names = {name.partition(".")[0] for name in await self._names(asked)}
        if parent := asked.option("parent"):
            if parent not in names:
                raise no_such_namespace(parent)
            names = set()  # no namespace is inside of another one
        found, following = answers.page(names, asked.option("pageToken"), asked.option("pageSize"))
        return _listed("namespaces", [[name] for name in found], following)

    async def _namespace(self, asked: Asked, namespace: str) -> Response:
        await self._in(asked, namespace)
        if asked.request.method == "HEAD":
            return Response(status_code=204)
        return answer({"namespace": [namespace], "properties": {}})

    async def _tables(self, asked: Asked, namespace: str) -> Response:
        names = await self._in(asked, namespace)
        found, following = answers.page(names, asked.option("pageToken"), asked.option("pageSize"))
        return _listed("identifiers", [{"namespace": [namespace], "name": name} for name in found], following)

    async def _table(self, asked: Asked, namespace: str, table: str) -> Response:
        if asked.request.method == "HEAD":
            if table not in await self._in(asked, namespace, of=table):
                raise no_such_table(namespace, table, asked.warehouse.snapshot)
            return Response(status_code=204)
        if (asked.option("snapshots") or "all") not in ("all", "refs"):  # a cut has one snapshot, which a ref names
            raise bad_request("snapshots is `all` or `refs`")
        began = time.perf_counter()
        name = self._seen(asked, namespace, table)
        try:
            load = partial(asked.threads.run, self._catalog.cut, name, asked.warehouse)
            cut = await self._turns.cut(name, asked.warehouse, load)
        except TableUnknown as unknown:
            self._metrics.refused(type(unknown).__name__, is_named=bool(asked.warehouse.snapshot))
            audit_log.refused(asked.request, asked.principal, table=name, why=str(unknown))
            raise no_such_table(namespace, table, asked.warehouse.snapshot) from unknown
        except HarnessError as error:
            self._metrics.refused(type(error).__name__, is_named=bool(asked.warehouse.snapshot))
            audit_log.refused(asked.request, asked.principal, table=name, why=str(error))
            raise
        cut = replace(cut, storage=cut.storage.renewed_at(_renewal(asked.warehouse, namespace, table)))
        self._metrics.loaded(cut, is_named=bool(asked.warehouse.snapshot), seconds=time.perf_counter() - began)
        same = answers.names_tag(asked.request.headers.get("if-none-match"), cut.etag)
        audit_log.loaded(asked.request, asked.principal, table=name, warehouse=asked.warehouse, cut=cut, unchanged=same)
        return answers.unchanged(cut.etag) if same else answers.table(cut)

    async def _credentials(self, asked: Asked, namespace: str, table: str) -> Response:
        if table not in await self._in(asked, namespace, of=table):
            raise no_such_table(namespace, table, asked.warehouse.snapshot)
        name = self._seen(asked, namespace, table)
        try:
            async with self._turns.alone(name):
                storage = await asked.threads.run(self._catalog.storage, name)
        except TableUnknown as unknown:
            raise no_such_table(namespace, table, asked.warehouse.snapshot) from unknown
        storage = storage.renewed_at(_renewal(asked.warehouse, namespace, table))
        if storage.config:
            audit_log.keys_given(asked.request, asked.principal, table=name, until=storage.until)
        return answer({"storage-credentials": storage.credentials()}, headers=answers.NOT_STORED)

    async def _report(self, asked: Asked, namespace: str, table: str) -> Response:
        body = await body_of(asked.request, most=REPORT_BYTES_MAX)
        name = self._seen(asked, namespace, table)
        try:
            report = orjson.loads(body)
        except orjson.JSONDecodeError as wrong:
            raise bad_request("the report is not JSON") from wrong
        if not isinstance(report, dict):
            raise bad_request("the report is not an object of JSON")
        snapshot_id = report.get("snapshot-id")
        if type(snapshot_id) is not int or not 0 < snapshot_id < 2**63:  # a bool is an int, too
            self._metrics.reported("other")
            return Response(status_code=204)
        try:
            is_kept = await asked.threads.run(self._catalog.reported, name, snapshot_id)
        except TableUnknown as unknown:
            raise no_such_table(namespace, table, asked.warehouse.snapshot) from unknown
        self._metrics.reported("kept" if is_kept else "over")
        return Response(status_code=204)

    async def _views(self, asked: Asked, namespace: str) -> Response:
        await self._in(asked, namespace)
        return _listed("identifiers", [], None)

    async def _view(self, asked: Asked, namespace: str, view: str) -> Response:
        raise answers.no_such_view(namespace, view)

    async def _plan(self, asked: Asked, namespace: str, table: str) -> Response:
        if not self._plans:
            said = "scans are planned by the engine: `/plan` is offered by a server with `--plan`"
            raise Refused(501, "UnsupportedOperationException", said)
        wanted = scan_wanted(await body_of(asked.request, most=PLAN_BYTES_MAX))
        began = time.perf_counter()
        name = self._seen(asked, namespace, table)
        try:
            async with self._turns.alone(f"{turn_of(name, asked.warehouse)} plan"):
                found = await asked.threads.run(self._catalog.scan, name, asked.warehouse, wanted)
        except HarnessError as error:
            self._metrics.unplanned(type(error).__name__)
            if isinstance(error, TableUnknown):
                raise no_such_table(namespace, table, asked.warehouse.snapshot) from error
            if isinstance(error, ScanOfUnknown):
                raise Refused(404, "NoSuchSnapshotException", str(error)) from error
            raise
        self._metrics.planned(time.perf_counter() - began)
        audit_log.planned(asked.request, asked.principal, table=name, warehouse=asked.warehouse, wanted=wanted)
        return Response(orjson.dumps(found), media_type=answers.JSON)

    def _seen(self, asked: Asked, namespace: str, table: str) -> str:
        """The name of a table that the client may see, if it exists. Raises: Refused."""
        name = table_name(namespace, table)
        if name is not None and asked.principal.may_see(name):
            return name
        self._metrics.refused("hidden")
        audit_log.refused(
            asked.request, asked.principal, table=f"{shown(namespace)}.{shown(table)}", why="it may not be seen"
        )
        raise no_such_table(namespace, table, asked.warehouse.snapshot)

    async def _names(self, asked: Asked) -> list[str]:
        return visible(await asked.threads.run(self._catalog.names, asked.warehouse), asked.principal)

    async def _in(self, asked: Asked, namespace: str, *, of: str | None = None) -> list[str]:
        """The names, without it, of the tables in *namespace* that the client sees. Raises: Refused without any.

        *of*: the table that is asked for, which the error names in place of the namespace.
        """
        names = [name.partition(".") for name in await self._names(asked)]
        found = [short for within, _, short in names if within == namespace]
        if not found:
            raise no_such_namespace(namespace) if of is None else no_such_table(namespace, of, asked.warehouse.snapshot)
        return found


def _renewal(warehouse: Warehouse, namespace: str, table: str) -> str:
    """The path of the keys of a table, below the address of the catalog."""
    parts = ["v1", *([warehouse.prefix] if warehouse.prefix else ()), "namespaces", namespace, "tables", table]
    return "/".join(["", *(quote(part, safe="") for part in parts), "credentials"])


def _prefix(parts: list[str]) -> tuple[Warehouse, list[str]]:
    """The state that a path names before `namespaces`, and what follows. `config` and others have no prefix."""
    if len(parts) > 1 and parts[0] != "namespaces" and parts[1] == "namespaces":
        try:
            return Warehouse.parse(parts[0]), parts[1:]
        except HarnessError as wrong:
            raise Refused(404, "NotFoundException", f"no such path: {wrong}") from wrong
    return Warehouse(), parts


def _listed(member: str, found: Iterable[object], following: str | None) -> Response:
    return answer({member: list(found)} | ({"next-page-token": following} if following else {}))
