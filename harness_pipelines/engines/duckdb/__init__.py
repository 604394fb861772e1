"""SQL in this process, by DuckDB. The package cannot be imported where DuckDB is not installed."""

from harness_pipelines.extras import require

require("sql", "SQL without a JVM", "duckdb")
