"""The bench of many tables: what they cost one process, small moves by both engines, and what must not grow."""

from __future__ import annotations

from collections.abc import Mapping

from harness_pipelines_tests.bench import moves
from harness_pipelines_tests.bench.base import Group
from harness_pipelines_tests.bench.scaling import backlog, expire, growth, peers, tables

#: Groups of figures in the order in which they are measured; what --only names. The busy tables are some of the idle
#: ones, whose history begins with them.
FIGURES: Mapping[str, Group] = {
    "idle": tables.measure_idle,
    "busy": tables.measure_busy,
    "hot": tables.measure_hot,
    "peers": peers.measure,
    "moves": moves.measure,
    "backlog": backlog.measure,
    "growth": growth.measure,
    "expire": expire.measure,
}
