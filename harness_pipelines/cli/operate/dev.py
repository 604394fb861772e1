"""`harness dev`: run Dagster's UI and daemon over the embedded services until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from harness_pipelines.cli.common import opened
from harness_pipelines.extras import require
from harness_pipelines.show.output import note
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.demo.producer import SteadyProducer

DEMO_ROWS, DEMO_RATE = 120_000, 1_000.0
STAGED_RATIO = 10.0  #: what is merged stays unclustered for long, so that there is something to recluster by hand
FIRST_WAVE = 0.25  #: share of the records that is sent at once; the others follow when these are in the batch view
LOOK_S = 0.5


@click.command(epilog="Example: harness dev --port 3000")
@click.option("--port", type=click.IntRange(1024, 65535), help="Port of the UI on 127.0.0.1.  [default: a free one]")
@click.option(
    "--demo-rows",
    type=click.IntRange(min=0),
    default=DEMO_ROWS,
    show_default=True,
    help="If there are no tables: produce N records for demo.lineitem, 1,000 a second. 0 creates no table.",
)
@click.option(
    "--page-port", type=click.IntRange(1024, 65535),
    help="Port of `harness serve` on 127.0.0.1, with the status page.  [default: a free one]",
)  # fmt: skip
@click.option("--for", "for_s", type=float, hidden=True, help="End after N seconds (for tests).")
@click.pass_obj
def dev(settings: Settings, port: int | None, page_port: int | None, demo_rows: int, for_s: float | None) -> None:
    """Open Dagster's UI, and `harness serve` with the status page, for the tables of this installation.

    Starts the embedded services if they do not run. Dagster keeps its state in a separate database. Ctrl-C ends both
    processes of Dagster. The services keep running; `harness services down` stops them.

    An installation without tables gets the table demo.lineitem with records of TPC-H. Dagster runs move them;
    docs/tutorial/dagster.md explains each step.
    """
    from harness_pipelines.cli.operate.serve import serving_here
    from harness_pipelines.services import Services
    from harness_pipelines.services.control_room import control_room

    require("dagster", "`harness dev`", "dagster_webserver")
    services = Services.from_settings(settings)
    filled = services.up(progress=note).fill(settings)
    with (
        _demo(filled, demo_rows) as producer,
        opened(filled) as harness,
        serving_here(harness, page_port) as (page, token),
        control_room(filled, port=port) as room,
    ):
        note(f"Dagster UI: {room.url}  (Ctrl-C ends it)\nstatus page: {page}")
        if token is not None:
            note(f"the same address is the catalog for engines, with the token {token}")
        if producer is not None:
            producer.start()
            note(f"{producer.scenario.spec.table} gets {demo_rows:,} records, {DEMO_RATE:,.0f} a second")
        deadline = None if for_s is None else time.monotonic() + for_s
        while deadline is None or time.monotonic() < deadline:
            room.check()
            if producer is not None:
                producer.check()
                # The first merge clusters what it finds; only later rows stay unclustered, however slow the machine.
                if producer.at_late and producer.truth.is_merged(harness.table(producer.scenario.spec.table)):
                    producer.go_on()
            time.sleep(LOOK_S)


@contextmanager
def _demo(settings: Settings, rows: int) -> Iterator[SteadyProducer | None]:
    """Run the producer of the demo's records if the table is new; it ends with the block."""
    from harness_pipelines.demo.lineitem import Lineitem
    from harness_pipelines.demo.producer import SteadyProducer
    from harness_pipelines.demo.scenario import PARTITIONS
    from harness_pipelines.sources.kafka.producer import recreate_topic

    scenario = Lineitem(mode="runs", staged_ratio=STAGED_RATIO)
    with TemporaryDirectory() as folder:
        with opened(settings) as harness:
            harness.init()
            if harness.tables() or not rows:
                yield None
                return
            log = scenario.make(Path(folder), rows)
            recreate_topic(settings, scenario.spec.topic, partitions=PARTITIONS)
            harness.apply(scenario.spec)
        producer = SteadyProducer(
            settings, scenario, replace(log, late_from=int(len(log) * FIRST_WAVE)), rate=DEMO_RATE
        )
        try:
            yield producer
        finally:
            producer.stop()
