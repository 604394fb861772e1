"""The bench of `harness serve`: what it costs that any engine reads a table, lake and buffer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from harness_pipelines_tests.bench.base import Group
from harness_pipelines_tests.bench.serving import cut_bytes, flight, freshness, loads, queries
from harness_pipelines_tests.bench.serving.readers import READERS

#: Groups of figures in the order in which they are measured; what --only names.
FIGURES: Mapping[str, Group] = {
    "loads": loads.measure,
    "keyed": loads.measure_keyed,
    "hot": loads.measure_hot,
    "bytes": cut_bytes.measure,
    "flight": flight.measure,
    "queries": queries.measure,
    **{f"freshness_{engine}": partial(freshness.measure, engine=engine) for engine in READERS},
}
