"""The only code that talks to a system: Kafka, Postgres, Iceberg, Spark."""
