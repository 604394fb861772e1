"""`harness serve`: the catalog by which every engine of Iceberg reads the tables, until it is stopped."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from harness_pipelines.cli.common import duration, opened
from harness_pipelines.cli.operate.serve_flight import FlightOptions, flight_options, flight_serving
from harness_pipelines.cli.operate.serve_sources import sources
from harness_pipelines.cli.operate.serve_token import token
from harness_pipelines.errors import UsageError
from harness_pipelines.show.output import emit, json_option, note

if TYPE_CHECKING:
    from harness_pipelines.app.client import Harness
    from harness_pipelines.serve.app import Application
    from harness_pipelines.serve.auth import KnownTokens
    from harness_pipelines.serve.places import Listener
    from harness_pipelines.serve.server import Tls

HOST = "127.0.0.1"
PORT = 8181  #: on which engines look for catalogs of this protocol in their examples
LOOK_S = 1.0
CERTIFICATE_S = 60.0  #: a renewed certificate is taken after so long
KEEP_S, EVERY_S = 900.0, 0.1
KEEP_S_MIN = 60.0
EVERY_S_MAX = 60.0
SAMPLE = "shop.orders"  #: in the blocks of an installation without a table


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of the server."""

    host: str = HOST
    port: int = PORT
    tls_cert: Path | None = None
    tls_key: Path | None = None
    behind_proxy: bool = False
    tables: tuple[str, ...] = ()
    keep_s: float = KEEP_S
    every_s: float = EVERY_S
    plan: bool = False


@click.group(invoke_without_command=True)
@click.option("--host", default=HOST, show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True,
    help="Port to listen on (0: any free one).",
)  # fmt: skip
@click.option(
    "--tls-cert", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Certificate with its chain, in PEM. A renewed file is taken within a minute.",
)  # fmt: skip
@click.option(
    "--tls-key", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Key of the certificate, in PEM, without a password.",
)  # fmt: skip
@click.option(
    "--behind-proxy", is_flag=True,
    help="A proxy in front ends TLS: serve HTTP on any address, under any host name.",
)  # fmt: skip
@click.option(
    "--tables", multiple=True, metavar="GLOB",
    help="Serve only these tables, such as 'shop.*'; may be repeated. Each token has its own limits besides.",
)  # fmt: skip
@click.option(
    "--keep", "keep_s", callback=duration, default=f"{KEEP_S / 60:g}m", show_default=True, metavar="TIME",
    help="How long the files of a cut stay after it was last given out: longer than the slowest query.",
)  # fmt: skip
@click.option(
    "--every", "every_s", callback=duration, default=f"{EVERY_S * 1000:g}ms", show_default=True, metavar="TIME",
    help="Loads within this time, at least a 5,000th of --keep, get the same cut, as several loads of one query do.",
)  # fmt: skip
@click.option(
    "--plan", is_flag=True,
    help="Plan scans for engines that ask for it (`scan-planning-mode=server`), of tables of up to 10,000 files.",
)  # fmt: skip
@click.option(
    "--log-file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the log of who read what to this file instead of standard error. It rotates at 32 MiB.",
)  # fmt: skip
@flight_options
@json_option
@click.pass_context
def serve(ctx: click.Context, /, log_file: Path | None, json_target: str | None, **options: Any) -> None:
    """Let every engine that reads Iceberg read the tables, fresh, and show their state to people in a browser.

    It serves Iceberg's REST catalog protocol, read-only: DuckDB, Trino, Spark, Flink, PyIceberg and others need no
    plugin. Each load of a table gets a cut: all its rows up to that moment, lake and buffer, as one snapshot.

    A browser that opens its address sees the status page: all tables with their lags, trouble and layout, as of now. On
    this machine it needs no login. Elsewhere a person logs in with a token, and sees the tables of that token.

    On this machine only (the default address) it makes a token for this run and prints it, unless the ledger has
    tokens. On another address it needs TLS, or a proxy in front that ends it, and tokens: `harness serve token create`.
    A reader's login is enough. Ctrl-C or SIGTERM ends the server once running loads are answered.

    \b
    Examples:
      harness serve
      harness serve --tables 'shop.*' --port 0
      harness serve --host 0.0.0.0 --tls-cert server.crt --tls-key server.key
      harness serve --host 0.0.0.0 --behind-proxy --keep 2h
      harness serve --flight 31337
      harness serve token create trino --tables 'shop.*' --expires 90d
      harness serve sources > models/sources.yml
    """
    if ctx.invoked_subcommand is not None:
        _check_no_options(ctx)
        return
    from harness_pipelines.serve.attach import blocks
    from harness_pipelines.serve.server import is_loopback, listening, url_of

    flight = FlightOptions.taken_from(options)
    wanted = ServeOptions(**options)
    _check(wanted)
    with listening(wanted.host, wanted.port) as listener:
        is_local = is_loopback(listener) and not wanted.behind_proxy
        tls = _tls(wanted, is_local=is_local)
        with opened(ctx.obj, log_level=logging.INFO, log_file=log_file) as harness:
            tokens, secret = _tokens(harness, is_local=is_local)
            url = url_of(listener, host=wanted.host, tls=tls is not None)
            files = (tls.certificate, tls.key) if tls else None
            with (
                _application(harness, wanted, tokens, local_only=is_local) as (application, table),
                interruptible() as stop,
                flight_serving(
                    harness, flight, tokens, host=wanted.host, tables=wanted.tables, tls=files
                ) as flight_url,
            ):
                attach = blocks(url, table=table, warehouse=harness.stores.warehouse)
                started = {"url": url, "page": f"{url}/", "flight": flight_url, "token": secret, "attach": attach}
                run(application, listener, stop, tls=tls, started=lambda: _show(started, json_target))
    if stop.number == signal.SIGINT:
        raise KeyboardInterrupt


serve.add_command(sources)
serve.add_command(token)


def _check_no_options(ctx: click.Context) -> None:
    """Raises: UsageError for options of the server that a sub-command would not follow."""
    given = [one for one in ctx.params if ctx.get_parameter_source(one) is ParameterSource.COMMANDLINE]
    if given:
        raise UsageError(
            f"options of the server have no effect before `{ctx.invoked_subcommand}`; write the options of "
            f"`harness serve {ctx.invoked_subcommand}` after it"
        )


def _check(wanted: ServeOptions) -> None:
    if (wanted.tls_cert is None) != (wanted.tls_key is None):
        raise UsageError("--tls-cert and --tls-key are given together")
    if wanted.behind_proxy and wanted.tls_cert is not None:
        raise UsageError("--behind-proxy says that a proxy ends TLS; omit --tls-cert and --tls-key, or it")
    if wanted.keep_s < KEEP_S_MIN:
        raise UsageError(f"--keep {wanted.keep_s:g}s is shorter than queries take; at least {KEEP_S_MIN:g}s")
    if wanted.every_s > EVERY_S_MAX:
        raise UsageError(f"--every {wanted.every_s:g}s is too long for a fresh table; at most {EVERY_S_MAX:g}s")


def _tls(wanted: ServeOptions, *, is_local: bool) -> Tls | None:
    """Raises: UsageError for files that are no certificate, and for an address that needs one."""
    from harness_pipelines.serve.server import Tls

    if wanted.tls_cert is not None and wanted.tls_key is not None:
        return Tls.of(wanted.tls_cert, wanted.tls_key)
    if not is_local and not wanted.behind_proxy:
        raise UsageError(
            f"--host {wanted.host} is reached by other machines, which would send their tokens in the clear: give "
            "--tls-cert and --tls-key, or --behind-proxy where a proxy in front ends TLS; nothing was served"
        )
    return None


def _tokens(harness: Harness, *, is_local: bool) -> tuple[KnownTokens, str | None]:
    """What knows the tokens, and the secret of the one that was made for this run. Raises: UsageError."""
    from harness_pipelines.serve.auth import FirstOf, KnownTokens, LedgerTokens, RunToken

    ledger = LedgerTokens(harness.stores.tokens.check)
    has_some = _has_tokens(harness)
    if is_local and not has_some:
        made = RunToken()
        return KnownTokens(FirstOf(made, ledger)), made.secret
    if has_some is False:
        raise UsageError(
            "no token is valid, so no client could read; nothing was served. "
            "`harness serve token create NAME --tables 'shop.*'` makes one"
        )
    return KnownTokens(ledger), None


def _has_tokens(harness: Harness) -> bool | None:
    """Whether a client could log in; None where this login may not know: a reader's may look up a token, not all."""
    from harness_pipelines.drivers.postgres import MissingRole

    try:
        return any(one.valid for one in harness.stores.tokens.list())
    except MissingRole:
        return None


@contextmanager
def serving_here(harness: Harness, port: int | None) -> Iterator[tuple[str, str | None]]:
    """Serve catalog and status page on this machine alone while the block lasts, as `harness dev` does.

    Yields the address, and the secret of the token that was made for this run. Raises: UsageError.
    """
    from harness_pipelines.serve.server import listening, serving, url_of

    with listening(HOST, port or 0, option="--page-port") as listener:
        tokens, secret = _tokens(harness, is_local=True)
        with (
            _application(harness, ServeOptions(), tokens, local_only=True) as (application, _),
            serving(application, listener, grace_s=1),
        ):
            yield url_of(listener, host=HOST, tls=False), secret


@contextmanager
def _application(
    harness: Harness, wanted: ServeOptions, tokens: KnownTokens, *, local_only: bool
) -> Iterator[tuple[Application, str]]:
    """What is served, and the name of a table of it, for the blocks that attach it."""
    from harness_pipelines.app.health import Health
    from harness_pipelines.app.probes import probes
    from harness_pipelines.serve.app import Application
    from harness_pipelines.serve.catalog import fresh_catalog
    from harness_pipelines.serve.page.content import Facts
    from harness_pipelines.serve.values import Warehouse

    globs = wanted.tables or ("*",)
    catalog = fresh_catalog(
        harness.stores,
        keep=timedelta(seconds=wanted.keep_s),
        every=timedelta(seconds=wanted.every_s),
        globs=globs,
    )
    asks = {name: ask for name, ask in probes(harness.settings).items() if name == "postgres"}
    health = Health(harness.settings, asks=asks)  # loads need no other server
    table = next(iter(catalog.names(Warehouse())), SAMPLE)
    with closing(Facts(harness, globs=globs)) as facts:
        yield (
            Application(catalog, tokens, local_only=local_only, facts=facts, plans=wanted.plan, health=health.to_json),
            table,
        )


def _show(started: dict[str, Any], json_target: str | None) -> None:
    from harness_pipelines.serve.attach import VARIABLE

    def human() -> None:
        click.echo(f"serving at {started['url']}, with the status page for browsers  (Ctrl-C ends it)\n")
        if started["flight"]:
            click.echo(f"Flight SQL at {started['flight']}\n")
        if started["token"]:
            click.echo(f"The token of this run, shown only here:\n\n  export {VARIABLE}={started['token']}\n")
        else:
            click.echo(f"With a token of `harness serve token create` in ${VARIABLE}:\n")
        for engine, block in started["attach"].items():
            lines = "\n".join(f"  {line}" if line else "" for line in block.splitlines())
            click.echo(f"{engine}:\n\n{lines}\n")

    emit(started, json_target, human, is_private=True)


class Stop:
    """Set by the first SIGTERM or Ctrl-C; the second Ctrl-C ends the process at once."""

    def __init__(self) -> None:
        # A handler runs between any two steps of its own thread. An event has a lock, and could be set while that
        # thread holds it; a simple queue has none.
        self._asked: SimpleQueue[int] = SimpleQueue()
        self.number: int | None = None

    def wait(self, most_s: float) -> bool:
        """Whether the end is asked for, as soon as it is, at the latest after *most_s*."""
        with suppress(Empty):
            self._asked.get(timeout=most_s)
        return self.number is not None

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number
        self._asked.put(number)


@contextmanager
def interruptible() -> Iterator[Stop]:
    """Handle both signals while the block lasts."""
    stop = Stop()
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(
    application: Application, listener: Listener, stop: Stop, *, tls: Tls | None, started: Callable[[], None]
) -> None:
    """Serve until *stop* is set; call *started* once clients are answered. Raises: ServerEnded."""
    from harness_pipelines.serve.server import CertificateFiles, serving

    files = CertificateFiles(tls, every_s=CERTIFICATE_S) if tls else None
    with serving(application, listener, tls=tls) as served:
        started()
        while not stop.wait(LOOK_S):
            served.check()
            if files is not None:
                files.look()
        note("harness: stopping once running loads are answered (Ctrl-C again ends at once)")
