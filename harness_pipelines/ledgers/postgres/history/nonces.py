"""The nonce of a move in a metadata file, which no other move with that number has."""

from __future__ import annotations

from harness_pipelines.drivers.postgres import Database
from harness_pipelines.protocol.moves import MoveClosed


def nonce_of(database: Database, move_id: int) -> str:
    """The nonce of a move that was reserved. Raises: MoveClosed."""
    if not (found := database.rows("history/nonce", {"move_id": move_id})):
        raise MoveClosed(f"move {move_id} is not in the ledger; nothing was written")
    return str(found[0]["nonce"])
