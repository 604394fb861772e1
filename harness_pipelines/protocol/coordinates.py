"""The five columns that every row has beside the user's: where its record lies in the log, and what it does."""

from __future__ import annotations

PARTITION, OFFSET, TIMESTAMP = "_kafka_partition", "_kafka_offset", "_kafka_timestamp"
OPERATION, SCHEMA_VERSION = "_op", "_schema_version"
STORED_COORDINATES = (PARTITION, OFFSET, TIMESTAMP)
COORDINATES = (*STORED_COORDINATES, OPERATION, SCHEMA_VERSION)
