"""Bulk work and reads on Spark, by Spark Connect. The package cannot be imported where PySpark is not installed."""

from harness_pipelines.extras import require

require("spark", "Spark", "pyspark")
