"""The claims of a worker as a whole, and the workers that share the tables of the ledger."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.ledgers.postgres.boundary import claim_key
from harness_pipelines.ports import rows
from harness_pipelines.protocol.claims import Claim, FencedOut, Stage, check_claim


def claim_all(database: Database, wanted: Collection[tuple[int, Stage]], holder: str, lease: timedelta) -> list[Claim]:
    """See `Ledger.claim_all`."""
    given = sorted(set(wanted))
    if not given:
        return []
    asked = {"tables": [table_id for table_id, _ in given], "stages": [str(stage) for _, stage in given]}
    with database.transaction() as connection:
        taken = connection.execute(sql("ledger/claim_all"), {**asked, "holder": holder, "lease": lease})
        return [rows.claim(row) for row in taken]


def renew_all(database: Database, claims: Collection[Claim], lease: timedelta) -> dict[Claim, Claim | FencedOut]:
    """See `Ledger.renew_all`."""
    given = list(claims)
    if not given:
        return {}
    [holder] = {one.holder for one in given}
    asked = {
        "tables": [one.table_id for one in given],
        "stages": [str(one.stage) for one in given],
        "shards": [one.shard for one in given],
        "epochs": [one.epoch for one in given],
    }
    found: dict[Claim, Claim | FencedOut] = {}
    with database.transaction() as connection:
        renewed = connection.execute(sql("ledger/renew_claims"), {**asked, "holder": holder, "lease": lease})
        by_place = {_place(one): one for one in map(rows.claim, renewed)}
        for one in given:
            if (now := by_place.get(_place(one))) is not None:
                found[one] = now
            elif (lost := _lost(connection, one)) is not None:
                found[one] = lost
    return found


def release_all(database: Database, holder: str, stages: Collection[tuple[int, Stage]]) -> None:
    """See `Ledger.release_all`."""
    given = sorted(stages)
    asked = {"tables": [table_id for table_id, _ in given], "stages": [str(stage) for _, stage in given]}
    database.run("ledger/release_claims", {**asked, "holder": holder})


def beat(database: Database, holder: str, stages: Collection[Stage], lease: timedelta) -> frozenset[str]:
    """See `Ledger.beat`."""
    asked = {"holder": holder, "stages": sorted(map(str, stages)), "lease": lease}
    with database.transaction() as connection:
        others = connection.execute(sql("ledger/beat"), asked).fetchall()
    return frozenset({holder, *(str(row["holder"]) for row in others)})


def _place(claim: Claim) -> tuple[int, Stage, int]:
    return claim.table_id, claim.stage, claim.shard


def _lost(connection: Connection, claim: Claim) -> FencedOut | None:
    """Why *claim* is lost; None: it is not. Locks nothing."""
    row = connection.execute(sql("ledger/claim"), claim_key(claim)).fetchone()
    if row is None:
        return FencedOut(f"{claim.stage} of table {claim.table_id}: the claim is gone")
    try:
        check_claim(claim, rows.claim(row), now=row["now"])
    except FencedOut as lost:
        return lost
    return None
