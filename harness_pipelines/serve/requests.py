"""A request as the routes get it: its path in parts, who asks, its body within limits, and calls that may block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import TypeVar, TypeVarTuple
from urllib.parse import parse_qs, unquote_to_bytes

import orjson
from anyio import CapacityLimiter, to_thread
from starlette.requests import Request

from harness_pipelines.ports.serving.scans import ScanWanted
from harness_pipelines.serve.answers import Refused, bad_request
from harness_pipelines.serve.auth import Principal
from harness_pipelines.serve.values import Warehouse

BODY_S = 20.0  #: for a client to send the body of a request
READS = frozenset({"GET", "HEAD"})
KNOWN = "is_known"  #: of the state of a request: it came with a good token
LOADS_MAX = 16  #: calls of the catalog at once; each has a session of Postgres for a part of its time
Args = TypeVarTuple("Args")
R = TypeVar("R")


class Threads:
    """Runs calls that may block on a limited number of threads, which hold up no process that ends."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._limiter: CapacityLimiter | None = None

    async def run(self, call: Callable[[*Args], R], *args: *Args) -> R:
        if self._limiter is None:  # it belongs to the loop that it is made in
            self._limiter = CapacityLimiter(self._most)
        return await to_thread.run_sync(call, *args, abandon_on_cancel=True, limiter=self._limiter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request of a client whose token is good."""

    request: Request
    principal: Principal
    warehouse: Warehouse
    threads: Threads

    def option(self, name: str) -> str | None:
        """A parameter of the query; the last one where it is there several times."""
        return self.request.query_params.get(name) if self.request.scope["query_string"] else None


def parts_of(request: Request) -> list[str]:
    """The parts of the path, each decoded alone, so that a name may have a slash. Raises: Refused."""
    path: bytes = request.scope.get("raw_path") or request.url.path.encode()
    parts = path.strip(b"/").split(b"/")
    try:
        return [unquote_to_bytes(part).decode() for part in parts]
    except UnicodeDecodeError as wrong:
        raise bad_request("the path is not UTF-8") from wrong


async def body_of(request: Request, *, most: int) -> bytes:
    """Raises: Refused for more than *most* bytes, or a client that does not send them."""
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                found += chunk
                if len(found) > most:
                    said = f"the body has more than {most:,} bytes"
                    raise Refused(413, "BadRequestException", said, {"connection": "close"})
    except TimeoutError as late:
        said = f"the body did not arrive within {BODY_S:g} s"
        raise Refused(408, "RequestTimeoutException", said, {"connection": "close"}) from late
    return bytes(found)


def form_of(body: bytes) -> dict[str, str]:
    """The fields of a form. Raises: Refused for what is none, or has a field twice."""
    bad = bad_request("the body is not a form (application/x-www-form-urlencoded) with each field once")
    try:
        found = parse_qs(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=32)
    except ValueError as wrong:
        raise bad from wrong
    if any(len(values) > 1 for values in found.values()):
        raise bad
    return {name: values[0] for name, values in found.items()}


def scan_wanted(body: bytes) -> ScanWanted:
    """What the body of a request to plan a scan asks for. Raises: Refused.

    Columns, and how many rows are wanted at least, change no file of the answer.
    """
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError as wrong:
        raise bad_request("the request is not JSON") from wrong
    if not isinstance(told, dict):
        raise bad_request("the request is not an object of JSON")
    if any(told.get(word) is not None for word in ("start-snapshot-id", "end-snapshot-id")):
        said = "a cut has no past: scans of what was added between two snapshots are not offered"
        raise Refused(501, "UnsupportedOperationException", said)
    snapshot_id, case_sensitive = told.get("snapshot-id"), told.get("case-sensitive", True)
    if snapshot_id is not None and (type(snapshot_id) is not int or not 0 < snapshot_id < 2**63):
        raise bad_request("snapshot-id is no number of a snapshot")
    if not isinstance(case_sensitive, bool):
        raise bad_request("case-sensitive is true or false")
    return ScanWanted(snapshot_id=snapshot_id, where=told.get("filter"), case_sensitive=case_sensitive)


@lru_cache(64)
def is_local(host: str) -> bool:
    """Whether the header ``Host`` names this machine, as a client on it, or one of a tunnel, does.

    Otherwise a foreign page could point its own host name to 127.0.0.1, and a browser would read for it.
    """
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if name.lower() == "localhost":
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
