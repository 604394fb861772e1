"""Flight SQL: clients of ADBC, JDBC and ODBC ask the tables by SQL. Needs the extra `flight`."""

from harness_pipelines.extras import require

require("flight", "Flight SQL", "google")
require("flight", "Flight SQL", "duckdb")
