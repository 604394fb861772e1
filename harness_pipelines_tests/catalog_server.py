"""A foreign catalog for tests: the Iceberg REST protocol over PyIceberg's SQL catalog, by nobody of the harness.

What a network, a server and its other users do to a mirror is done here: answers are lost, errors are given before or
after the work, the server goes back to a backup, and another writer commits.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.table import CommitTableRequest, Table
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from harness_pipelines.lakes.iceberg.checked_io import StoreIO
from harness_pipelines.services.state import free_port

TOKEN = "let-me-in"
_ENDPOINTS = (
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "POST /v1/{prefix}/namespaces/{namespace}/tables",
    "POST /v1/{prefix}/namespaces/{namespace}/register",
    "POST /v1/{prefix}/namespaces",
)
TRANSACTION = "transactions/commit"
_TOGETHER = f"POST /v1/{{prefix}}/{TRANSACTION}"
_STATUS = {NoSuchTableError: 404, NoSuchNamespaceError: 404, TableAlreadyExistsError: 409, CommitFailedException: 409}


class CatalogServer:
    """One server; its state is a file of SQLite in *folder*.

    *together*: it takes the changes of several tables in one request. *names*: it says which requests it takes.
    """

    def __init__(self, folder: Path, *, together: bool = True, names: bool = True, token: str | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._together, self._names, self._token = folder, together, names, token
        self._lock = threading.Lock()
        self._faults: list[tuple[str, str, int]] = []  #: kind of request, what happens, how often
        self.seen: Counter[str] = Counter()
        self.catalog = self._opened()
        self.catalog.create_namespace_if_not_exists("scratch")
        self.port = free_port(folder, "catalog")
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> CatalogServer:
        config = uvicorn.Config(self._app(), host="127.0.0.1", port=self.port, log_level="error", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the catalog's server did not start"
            self._thread.join(0.01)
        return self

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(60)
        self._server = self._thread = None

    @contextmanager
    def running(self) -> Iterator[CatalogServer]:
        self.start()
        try:
            yield self
        finally:
            self.stop()

    # -- what tests do to it --------------------------------------------------------------------------------

    def fail(self, kind: str, how: str, *, times: int = 1_000_000) -> None:
        """The next *times* requests of *kind* (load, register, commit, transaction, drop) go wrong.

        A commit with removals of snapshots or branches is one of the kind `removal`, too.

        *how*: `before` and `after` are a status before or after the work, as ``503 before``, ``409 after``; `lost`
        does the work and ends the connection; ``404 page`` is what a gateway answers before the server is asked.
        """
        with self._lock:
            self._faults.append((kind, how, times))

    def heal(self) -> None:
        with self._lock:
            self._faults.clear()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Nobody changes anything while the block lasts."""
        with self._lock:
            yield

    def backup(self) -> Path:
        """A copy of the server's state of now."""
        with self._lock:
            return Path(shutil.copy(self._folder / "catalog.db", self._folder / "backup.db"))

    def restore(self, backup: Path) -> None:
        """Go back to *backup*."""
        with self._lock:
            self.catalog.engine.dispose()
            shutil.copy(backup, self._folder / "catalog.db")
            self.catalog = self._opened()

    def table(self, identifier: str) -> Table:
        """As another user of the catalog finds and changes it."""
        return self.catalog.load_table(identifier)

    # -- the protocol ---------------------------------------------------------------------------------------

    def _opened(self) -> SqlCatalog:
        place = self._folder / "catalog.db"
        files = {PY_IO_IMPL: f"{StoreIO.__module__}.{StoreIO.__name__}"}  # reached as the lake is, also on a store
        return SqlCatalog("lakehouse", uri=f"sqlite:///{place}", warehouse=(self._folder / "own").as_uri(), **files)

    def _app(self) -> Starlette:
        table = "/v1/namespaces/{namespace}/tables/{table}"
        return Starlette(
            routes=[
                Route("/v1/config", self._config),
                Route("/v1/namespaces", self._route("namespace"), methods=["POST"]),
                Route("/v1/namespaces/{namespace}/register", self._route("register"), methods=["POST"]),
                Route(table, self._route("load"), methods=["GET"]),
                Route(table, self._route("commit"), methods=["POST"]),
                Route(table, self._route("drop"), methods=["DELETE"]),
                *(
                    [Route(f"/v1/{TRANSACTION}", self._route("transaction"), methods=["POST"])]
                    if self._together
                    else []
                ),
            ]
        )

    async def _config(self, request: Request) -> Response:
        if (refused := self._refused(request)) is not None:
            return refused
        found = [*_ENDPOINTS, *([_TOGETHER] if self._together else [])]
        named = {"endpoints": found} if self._names else {}
        return JSONResponse({"defaults": {}, "overrides": {}, **named})

    def _route(self, kind: str) -> Any:
        async def answer(request: Request) -> Response:
            if (refused := self._refused(request)) is not None:
                return refused
            body = await request.body()
            with self._lock:
                self.seen[kind] += 1
                how = (self._fault("removal") if b'"remove-snapshot' in body else "") or self._fault(kind)
                status = int(how.split()[0]) if how and how != "lost" else 0
                if how.endswith("page"):
                    return HTMLResponse("<html><body>no route</body></html>", status_code=status)
                if how.endswith("before"):
                    return _error(status, "ServerError", "a test says so")
                try:
                    done = getattr(self, f"_{kind}")(request.path_params, json.loads(body) if body else {})
                except tuple(_STATUS) as error:
                    code = next(code for of, code in _STATUS.items() if isinstance(error, of))
                    return _error(code, type(error).__name__, str(error))
            if how == "lost":
                return _Lost()
            return _error(status, "Broken", "a test says so") if status else done

        return answer

    def _refused(self, request: Request) -> Response | None:
        if self._token is None or request.headers.get("Authorization") == f"Bearer {self._token}":
            return None
        return _error(401, "NotAuthorizedException", "no such login")

    def _fault(self, kind: str) -> str:
        for at, (of, how, times) in enumerate(self._faults):
            if of == kind and times:
                self._faults[at] = (of, how, times - 1)
                return how
        return ""

    def _namespace(self, _: Any, body: Any) -> Response:
        self.catalog.create_namespace(tuple(body["namespace"]))
        return JSONResponse({"namespace": body["namespace"], "properties": {}})

    def _load(self, path: Any, _: Any) -> Response:
        return _shown(self.catalog.load_table((*_names(path), path["table"])))

    def _register(self, path: Any, body: Any) -> Response:
        return _shown(self.catalog.register_table((*_names(path), body["name"]), body["metadata-location"]))

    def _drop(self, path: Any, _: Any) -> Response:
        self.catalog.drop_table((*_names(path), path["table"]))
        return Response(status_code=204)

    def _commit(self, path: Any, body: Any) -> Response:
        found = self.catalog.load_table((*_names(path), path["table"]))
        self._apply(found, body)
        return _shown(self.catalog.load_table(found.name()))

    def _transaction(self, _: Any, body: Any) -> Response:
        """All or nothing: what each requires is asked of all before one is changed, and nobody comes in between."""
        found = [
            self.catalog.load_table((*one["identifier"]["namespace"], one["identifier"]["name"]))
            for one in body["table-changes"]
        ]
        for table, change in zip(found, body["table-changes"], strict=True):
            for required in CommitTableRequest.model_validate(change).requirements:
                required.validate(table.metadata)
        for table, change in zip(found, body["table-changes"], strict=True):
            self._apply(table, change)
        return Response(status_code=204)

    def _apply(self, table: Table, body: Any) -> None:
        asked = CommitTableRequest.model_validate({"identifier": {"namespace": [], "name": ""}, **body})
        self.catalog.commit_table(table, asked.requirements, asked.updates)


class _Lost(Response):
    """The work was done, and the connection ends without an answer."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        send.__self__.transport.abort()  # of uvicorn


def _names(path: Any) -> tuple[str, ...]:
    return tuple(path["namespace"].split("\x1f"))


def _shown(table: Table) -> Response:
    metadata = json.loads(table.metadata.model_dump_json())
    return JSONResponse({"metadata-location": table.metadata_location, "metadata": metadata, "config": {}})


def _error(status: int, kind: str, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status_code=status)
