"""The tables of the fault tests, run by Dagster."""

from harness_pipelines_tests.faults.conftest import harness, kafka, make_rig, rig, settings

__all__ = ["harness", "kafka", "make_rig", "rig", "settings"]
