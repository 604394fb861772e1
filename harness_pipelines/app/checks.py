"""Asset checks for Dagster: cheap ones from the ledger, and the full audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from harness_pipelines.ledgers.postgres.views.status import Overview
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages import compact
from harness_pipelines.stages.otree.recluster import left_out

if TYPE_CHECKING:
    from harness_pipelines.app.installation import Stores


SMALL_FILES_MAX = 200
CONTRACT_RECENT_S = 24 * 3600.0
MIRROR_LAG_S = 300.0
HELD_S = 60.0  #: a transaction of a producer may be open so long


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check: whether it passed, what it looked at, and the numbers behind it."""

    passed: bool
    description: str
    numbers: Mapping[str, Any]
    is_advice: bool = False  #: nothing is wrong yet


def no_gap_no_overlap(stores: Stores, table: TableRow) -> CheckResult:
    """Committed ranges of ingest and tier touch, from the start of each partition on."""
    seams = stores.proof.seams(table)
    shown = "; ".join(
        f"{s['stage']} move {s['move_id']}: partition {s['partition']} continues at {s['low']} after {s['before']}"
        for s in seams
    )
    return CheckResult(
        passed=not seams,
        description=shown or "every committed range begins where the one before it ends",
        numbers={"seams": len(seams)},
    )


def rows_are_conserved(stores: Stores, table: TableRow) -> CheckResult:
    """Rows that ingest took = rows in the lake + rows still in the buffer, at one instant."""
    found = stores.proof.conserved(table)
    numbers = {"ingested": found.ingested, "lake": found.tiered, "buffer": found.buffered}
    return CheckResult(
        passed=found.ingested == found.tiered + found.buffered,
        description=f"{found.ingested:,} rows taken, {found.tiered:,} in the lake, {found.buffered:,} in the buffer",
        numbers=numbers,
    )


def is_fresh(stores: Stores, table: TableRow) -> CheckResult:
    """Nothing that waits is older than the spec's objectives. Raises: what Kafka raises."""
    goals = table.spec.freshness
    positions = stores.tables.positions(table)
    marks = stores.log.watermarks(table.spec.topic, [p.partition for p in positions])
    since_ingest = Overview(stores.readers).since_ingest_s(table)
    since_tier_s = stores.tables.since_tier_s(table)
    tail = sum(max(marks[p.partition].end - p.bounds.buffer_hi, 0) for p in positions)
    buffered = sum(p.bounds.buffer_hi - p.bounds.stream_hi for p in positions)
    since_ingest_s = since_tier_s if since_ingest is None else since_ingest
    held = stores.log.held(table.spec.topic, [p.partition for p in positions])
    late = [
        *(f"partition {p}: {one}" for p, one in sorted(held.items())
          if one.since is None or (datetime.now(UTC) - one.since).total_seconds() > max(goals.visible, HELD_S)),
        *([f"{tail} records wait in Kafka, no commit for {since_ingest_s:.0f} s"]
          if tail and since_ingest_s > goals.visible else []),
        *([f"{buffered} offsets wait in the buffer, no move of tier for {since_tier_s:.0f} s"]
          if buffered and since_tier_s > goals.lake else []),
    ]  # fmt: skip
    return CheckResult(
        passed=not late,
        description="; ".join(late) or "within the objectives",
        numbers={"lag_tail": tail, "lag_buffer": buffered, "since_tier_s": since_tier_s},
    )


def nothing_is_stuck(stores: Stores, table: TableRow) -> CheckResult:
    """The table was not stopped by an error, and no move failed again and again."""
    fresh = stores.tables.table(table.name)
    stuck = [m for m in Overview(stores.readers).open_moves(table) if m["state"] == "QUARANTINED" or m["failures"] > 0]
    trouble = [*([fresh.stopped] if fresh.stopped else [])]
    given_up = left_out(stores, table)
    trouble += [f"otree move {m.move_id} failed in every attempt, its files are left out: {m.error}" for m in given_up]
    trouble += [str(one) for one in stores.stalls.now([table.name]) if one.is_alarm]
    trouble += [f"{m['stage']} move {m['move_id']}, attempt {m['attempt']}: {m['error']}" for m in stuck]
    return CheckResult(
        passed=not trouble, description="; ".join(trouble) or "nothing holds a stage", numbers={"stuck": len(trouble)}
    )


def kafka_keeps_what_is_not_in_the_lake(stores: Stores, table: TableRow) -> CheckResult:
    """Kafka still has the rows of the buffer and the records that ingest has not read. Raises: what Kafka raises."""
    bounds = {p.partition: p.bounds for p in stores.tables.positions(table) if p.partition >= 0}
    marks = stores.log.watermarks(table.spec.topic, bounds)
    room = {p: b.stream_hi - marks[p].low for p, b in bounds.items()}
    short = [
        f"partition {p}: Kafka begins at {marks[p].low}, {-left} offsets above what the lake has"
        for p, left in sorted(room.items())
        if left < 0
    ]
    return CheckResult(
        passed=not short,
        description="; ".join(short) or "Kafka still has everything that is not in the lake",
        numbers={"headroom_offsets": min(room.values(), default=0)},
        is_advice=True,
    )


def compact_keeps_up(stores: Stores, table: TableRow) -> CheckResult:
    """The stream view has no more small files than compact leaves for its next moves. Raises: LakeAway."""
    small = 0
    if Stage.COMPACT in table.effects:
        small = sum(len(run.files) for run in compact.due(stores, table, stores.tables.head(table)))
    return CheckResult(
        passed=small <= SMALL_FILES_MAX,
        description=f"{small:,} small files that belong together" if small else "nothing is worth putting together",
        numbers={"small_files": small},
        is_advice=True,
    )


def contract(stores: Stores, table: TableRow) -> CheckResult:
    """No record broke a check of the table's contract within the last day; the numbers are of all time."""
    found = Overview(stores.readers).violations(table)
    lately = [one for one in found if one["since_s"] < CONTRACT_RECENT_S]
    shown = "; ".join(f"{one['check']} ({one['severity']}), last at {one['last_at']:%F %T} UTC" for one in lately)
    return CheckResult(
        passed=not lately,
        description=f"broken within a day: {shown}" if lately else "no record broke a check within a day",
        numbers={f"{one['check']} ({one['severity']})": one["records"] for one in found},
        is_advice=True,
    )


def few_are_refused(stores: Stores, table: TableRow) -> CheckResult:
    """No partition quarantined more than 1 % of its last 10,000 offsets, but for what was replayed or dropped since."""
    found = Overview(stores.readers).refusing(table).get(table.table_id)
    return CheckResult(
        passed=found is None or not found.is_much,
        description=f"{found}; `harness quarantine list {table.name}`" if found else "none is quarantined",
        numbers={"refused": found.refused if found else 0, "offsets": found.offsets if found else 0},
    )


def mirrors_follow(stores: Stores, table: TableRow) -> CheckResult:
    """Every foreign catalog of the spec shows the newest version, or one that was the newest minutes ago."""
    found = stores.mirrors.lags([table.name])
    late = [str(one) for one in found if one.trouble or one.lag_s > MIRROR_LAG_S]
    return CheckResult(
        passed=not late,
        description="; ".join(late) or ("; ".join(map(str, found)) or "no foreign catalog is to follow"),
        numbers={one.catalog: round(one.lag_s, 1) for one in found},
        is_advice=True,
    )


CHECKS = {
    "no_gap_no_overlap": no_gap_no_overlap,
    "rows_are_conserved": rows_are_conserved,
    "is_fresh": is_fresh,
    "nothing_is_stuck": nothing_is_stuck,
    "kafka_keeps_what_is_not_in_the_lake": kafka_keeps_what_is_not_in_the_lake,
    "compact_keeps_up": compact_keeps_up,
    "contract": contract,
    "few_are_refused": few_are_refused,
    "mirrors_follow": mirrors_follow,
}


def is_complete(stores: Stores, table: TableRow, *, full: bool = False) -> CheckResult:
    """Every record is in exactly one tier with its content; reads what was added since the last audit, or all of it.

    Raises: what `audit_table` raises.
    """
    from harness_pipelines.audit.proof.complete import audit_table

    report = audit_table(stores, table, full=full)
    wrong = [f"{count:,} {kind}" for kind, count in report.counts.items() if count]
    wrong += [f"{len(report.accounts)} moves that brought other rows"] if report.accounts else []
    wrong += [report.foreign] if report.foreign else []
    wrong += [report.batch.said] if report.batch and not report.batch.ok else []
    numbers = {
        "version": report.version,
        "rows": report.rows,
        "files_read": report.files_read,
        "signed_off": sum(r.high - r.low for r in report.ranges if r.signed_off is not None),
        "seconds": round(report.seconds, 3),
        **{str(kind): count for kind, count in report.counts.items()},
    }
    return CheckResult(
        passed=report.ok,
        description="; ".join(wrong) or f"{report.rows:,} rows: every record is in exactly one tier",
        numbers=numbers,
    )
