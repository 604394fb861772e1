"""The tables of the fault tests, here to be read by engines."""

from harness_pipelines_tests.faults.conftest import harness, kafka, make_rig, settings

__all__ = ["harness", "kafka", "make_rig", "settings"]
