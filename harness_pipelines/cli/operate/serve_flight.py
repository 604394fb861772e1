"""`harness serve --flight PORT`: SQL for clients of ADBC, JDBC and ODBC, beside the catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harness_pipelines.cli.common import duration, size
from harness_pipelines.errors import UsageError
from harness_pipelines.extras import needs
from harness_pipelines.ports.serving.tokens import is_named

if TYPE_CHECKING:
    from harness_pipelines.app.client import Harness
    from harness_pipelines.serve.auth import KnownTokens, Principal

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightOptions:
    """Options of Flight SQL; without a port it is not served."""

    flight: int | None
    flight_queries: int
    flight_memory: int
    flight_timeout: float

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> FlightOptions:
        """Those of *options*, which loses them."""
        return cls(**{name: options.pop(name) for name in cls.__dataclass_fields__})


def flight_options(function: Function) -> Function:
    """Add the options of Flight SQL."""
    for add in (
        click.option(
            "--flight-timeout", callback=duration, default="10m", show_default=True, metavar="TIME",
            help="End a query of Flight SQL after this time, taken or not.",
        ),
        click.option(
            "--flight-memory", callback=size, default="1GiB", show_default=True, metavar="SIZE",
            help="Memory of each query of Flight SQL; what does not fit goes to a temporary folder.",
        ),
        click.option(
            "--flight-queries", type=click.IntRange(1, 1000), default=4, show_default=True, metavar="N",
            help="Run at most N queries of Flight SQL at once; others wait for ten seconds.",
        ),
        click.option(
            "--flight", type=click.IntRange(0, 65535), metavar="PORT",
            help="Also serve Flight SQL on this port (0: any free one), with the same tokens and certificate.",
        ),
    ):  # fmt: skip
        function = add(function)
    return function


@contextmanager
def flight_serving(
    harness: Harness,
    wanted: FlightOptions,
    tokens: KnownTokens,
    *,
    host: str,
    tables: Sequence[str],
    tls: tuple[Path, Path] | None,
) -> Iterator[str | None]:
    """Serve Flight SQL while the block lasts; its address, None where it is not asked for. Raises: UsageError."""
    if wanted.flight is None:
        yield None
        return
    with needs("flight", "`harness serve --flight`"):
        from harness_pipelines.serve.flight.server import FlightSqlServer
    from harness_pipelines.app.sql import Sql
    from harness_pipelines.engines.duckdb.database import Limits
    from harness_pipelines.engines.duckdb.processes import Spares

    limits = Limits(memory_bytes=wanted.flight_memory, time_s=wanted.flight_timeout)
    spares = Spares(limits)
    globs = tables or ("*",)

    def open_sql(principal: Principal) -> Sql:
        def may_see(name: str) -> bool:
            return principal.may_see(name) and is_named(name, globs)

        return Sql(harness.stores, limits, may_see=may_see, spares=spares)

    scheme = "grpc+tls" if tls else "grpc"
    certificate = (tls[0].read_bytes(), tls[1].read_bytes()) if tls else None
    shown = f"[{host}]" if ":" in host else host
    try:
        server = FlightSqlServer(
            f"{scheme}://{shown}:{wanted.flight}",
            open_sql,
            tokens,
            queries_max=wanted.flight_queries,
            limits=limits,
            tls=certificate,
        )
    except OSError as error:
        raise UsageError(
            f"Flight SQL cannot be served at {host}:{wanted.flight}: {error}; nothing was done. Give --flight a free "
            "port (0: any)"
        ) from error
    try:
        spares.fill()
        yield f"{scheme}://{shown}:{server.port}"
    finally:
        server.stop()
        spares.close()
