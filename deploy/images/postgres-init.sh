#!/bin/sh
# Runs once, on an empty volume: Dagster's own database and role beside the ledger's, neither of which sees the other.
set -eu
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --set password="$DAGSTER_DB_PASSWORD" <<'SQL'
CREATE ROLE dagster LOGIN PASSWORD :'password';
CREATE DATABASE dagster OWNER dagster;
REVOKE CONNECT ON DATABASE dagster FROM PUBLIC;
SQL
