"""Reads in this process: Arrow, no JVM."""
