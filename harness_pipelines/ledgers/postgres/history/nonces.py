"""What a metadata file tells of its move's row in the ledger: a nonce that no other move of that number has."""

from __future__ import annotations

from harness_pipelines.drivers.postgres import Database
from harness_pipelines.protocol.moves import MoveClosed


def nonce_of(database: Database, move_id: int) -> str:
    """The nonce of a move that was reserved. Raises: MoveClosed."""
    if not (found := database.rows("history/nonce", {"move_id": move_id})):
        raise MoveClosed(f"move {move_id} is not in the ledger; nothing was written")
    return str(found[0]["nonce"])
