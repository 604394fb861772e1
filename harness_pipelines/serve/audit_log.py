"""Who read what: one event for each load of a table, in the log of the server."""

from __future__ import annotations

from datetime import datetime

import structlog
from starlette.requests import Request

from harness_pipelines.ports.serving.scans import ScanWanted
from harness_pipelines.serve.answers import shown
from harness_pipelines.serve.auth import Principal
from harness_pipelines.serve.values import CutAnswer, Warehouse

log = structlog.get_logger(__name__)


def loaded(
    request: Request, principal: Principal, *, table: str, warehouse: Warehouse, cut: CutAnswer, unchanged: bool
) -> None:
    """A client got a cut, or the answer that the one that it has is still the newest."""
    log.info(
        "serve.loaded",
        table=table,
        reader=principal.name,
        snapshot=cut.snapshot_id,
        unchanged=unchanged,
        state=warehouse.prefix or warehouse.kind,
        **place_of(request),
    )


def keys_given(request: Request, principal: Principal, *, table: str, until: datetime | None) -> None:
    """A client got keys for the files of a table without a load, as it does before those of its load end."""
    log.info("serve.keys_given", table=table, reader=principal.name, until=until and str(until), **place_of(request))


def planned(request: Request, principal: Principal, *, table: str, warehouse: Warehouse, wanted: ScanWanted) -> None:
    """A client got the files of a scan."""
    log.info(
        "serve.planned",
        table=table,
        reader=principal.name,
        snapshot=wanted.snapshot_id,
        state=warehouse.prefix or warehouse.kind,
        **place_of(request),
    )


def refused(request: Request, principal: Principal, *, table: str, why: str) -> None:
    """A client wanted a table that does not exist, that it may not see, or that could not be given."""
    log.info("serve.refused", table=table, reader=principal.name, why=shown(why), **place_of(request))


def place_of(request: Request) -> dict[str, str]:
    """Where a request came from: any client may send what a proxy says of it, so both are shown."""
    found = {
        "address": request.client.host if request.client else "unknown",
        "agent": shown(request.headers.get("user-agent", "")),
    }
    if forwarded := request.headers.get("x-forwarded-for"):
        found["forwarded_for"] = shown(forwarded)
    return found
