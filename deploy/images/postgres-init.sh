#!/bin/sh
# Runs once, on an empty volume: the logins of workers and Spark, which own nothing, and Dagster's own database and role
# beside the ledger's, neither of which sees the other. A volume from before has to be given them: docs/how-to/deploy.md.
set -eu
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --set database="$POSTGRES_DB" \
    --set dagster="$DAGSTER_DB_PASSWORD" --set worker="$WORKER_PASSWORD" --set spark="$SPARK_DB_PASSWORD" <<'SQL'
CREATE ROLE harness_reader NOLOGIN;
CREATE ROLE harness_worker NOLOGIN;
CREATE ROLE harness_spark NOLOGIN;
CREATE ROLE harness_app LOGIN PASSWORD :'worker' IN ROLE harness_worker;
CREATE ROLE harness_spark_app LOGIN PASSWORD :'spark' IN ROLE harness_spark;
REVOKE ALL ON DATABASE :"database" FROM PUBLIC;
GRANT CONNECT ON DATABASE :"database" TO harness_reader, harness_worker, harness_spark;
CREATE ROLE dagster LOGIN PASSWORD :'dagster';
CREATE DATABASE dagster OWNER dagster;
REVOKE CONNECT ON DATABASE dagster FROM PUBLIC;
SQL
