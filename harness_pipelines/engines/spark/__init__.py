"""Bulk work and reads on Spark, by Spark Connect."""
