"""What the rows of a table's records depend on, besides the records: two decoders with one name give the same rows."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from importlib.metadata import version

import orjson

from harness_pipelines.formats.contract.checks import judge_of
from harness_pipelines.spec.table import TableSpec

#: Words of a spec that decide no row. All others do, and so does a new word until it is named here.
ELSEWHERE = frozenset(
    {
        *("table", "topic", "topics", "start", "views", "layout", "buffer", "shards", "tier", "recall", "stop_above"),
        *("quarantine_mb", "retention", "freshness", "catalogs", "mode"),
    }
)


def decoder_name(spec: TableSpec) -> str:
    """A digest of all that decides which rows records become: formats, columns, transform, contract, the code.

    Of a contract in Python code it has the checks, and what they compare with, but not the code of own functions: who
    changes that without a word in the spec changes what is decoded from then on. A registry's schemas are no part of
    it, since an id never changes its schema (`Reason.UNKNOWN_SCHEMA` is told apart: `UNSETTLED`).
    Raises: ContractUnusable.
    """
    judge = judge_of(spec)
    rules = [] if judge is None else [[r.name, r.severity, r.expected, r.columns] for r in judge.rules]
    said = [_release(), spec.model_dump(mode="json", exclude=set(ELSEWHERE)), rules]
    return blake2b(orjson.dumps(said, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()


@cache
def _release() -> str:
    return version("harness-pipelines")
