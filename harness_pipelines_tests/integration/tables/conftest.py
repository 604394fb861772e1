"""The tables of the fault tests, here to be used as users do."""

from harness_pipelines_tests.faults.conftest import harness, kafka, make_rig, proxy, rig, settings

__all__ = ["harness", "kafka", "make_rig", "proxy", "rig", "settings"]
