"""What the producer writes: every record follows from its number, so a reader can tell whether it was altered."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from harness_pipelines.spec.settings import EngineWord

Ints = NDArray[np.int64]
Number = TypeVar("Number", int, Ints)
PARTITIONS = 3
COLUMNS: dict[str, Any] = {"id": {"type": "long", "required": True}, "n": "int", "s": "string"}
KEY_COLUMNS: dict[str, Any] = {"k": "long", "id": "long", "n": "int", "s": "string"}
COORDINATES = ("_kafka_partition", "_kafka_offset")
READ = ("id", "n", "s", *COORDINATES)
LATER = tuple(f"later_{i}" for i in range(4))  #: in every record from the beginning; columns once they were evolved
EARLY = "early"  #: a field that no column names
KEYS = 199
_MODULUS = 1_000
_MISFIT_EVERY = 97
_EARLY_EVERY = 53
_DELETE_EVERY = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One table of a run, and what its records are like."""

    suffix: str  #: of the table's name and of its topic; the first table has none
    share: float  #: of the records of a run
    partitions: int = PARTITIONS
    keyed: bool = False  #: the newest record of a key counts
    early: bool = False  #: some records have a field that the spec takes at times: rows, or held back
    buffered: bool = True
    views: str = "both"
    grows: bool = False  #: partitions join
    rules: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def name(self, first: str) -> str:
        return first + self.suffix

    @property
    def topic(self) -> str:
        return f"chaos{self.suffix}"

    @property
    def settings(self) -> Mapping[str, Any]:
        """Its part of a spec."""
        return {"columns": COLUMNS, "views": self.views, **self.rules}

    def home_of(self, number: int, partitions: int) -> int:
        """The partition of record *number*; all records of a key have the same."""
        return (key_of(number) if self.keyed else number) % partitions

    def value(self, number: int) -> bytes:
        """The bytes of record *number*."""
        if is_misfit(number):
            return b'{"id":"not a number","n":%d,"k":%d}' % (number, key_of(number))
        if self.keyed and is_delete(number):
            return b'{"k":%d,"op":"d"}' % key_of(number)
        more = f',"k":{key_of(number)}' if self.keyed else ""
        more += f',"{EARLY}":1' if self.early and is_early(number) else ""
        if not (self.early or self.keyed):
            more += "".join(f',"{name}":{number}' for name in LATER)
        return b'{"id":%d,"n":%d,"s":"row %d"%s}' % (number, number % _MODULUS, number, more.encode())

    def rows_of(self, numbers: Ints) -> NDArray[np.bool_]:
        """Which of the records *numbers* of one partition, in the order of their offsets, are rows."""
        if not self.keyed:
            return np.asarray(numbers >= 0)
        fits = np.flatnonzero(numbers >= 0)
        _, from_end = np.unique(key_of(numbers[fits])[::-1], return_index=True)  # the last of each key
        newest = fits[len(fits) - 1 - from_end]
        found = np.zeros(len(numbers), np.bool_)
        found[newest[~is_delete(numbers[newest])]] = True
        return found

    def may_be_held(self, numbers: Ints) -> NDArray[np.bool_]:
        """Which of the records *numbers* may be rows or in quarantine: that depends on when they were decoded."""
        return np.asarray((numbers >= 0) & is_early(numbers) & self.early)


#: A log, a keyed log, a log without a buffer, and a log that grows: between them every route of a row.
SUBJECTS = (
    Subject(suffix="", share=0.4, rules={"layout": {"regions": 8}}),
    Subject(
        suffix="_keyed",
        share=0.2,
        partitions=2,
        keyed=True,
        rules={
            "columns": KEY_COLUMNS,
            "key": ["k"],
            "delete": {"field": "op", "values": ["d"]},
            "layout": {"columns": ["n", "k"], "regions": 4},
        },
    ),
    Subject(suffix="_direct", share=0.2, partitions=2, buffered=False, views="stream", rules={"buffer": "none"}),
    Subject(
        suffix="_growing",
        share=0.2,
        partitions=1,
        early=True,
        grows=True,
        views="batch",
        rules={"unknown_fields": "quarantine"},
    ),
)
MAIN, KEYED, DIRECT, GROWING = SUBJECTS
BOTH = "both"  #: Spark moves half of the tables, Arrow the other half
CROWD_SHARE = 0.2  #: of the records of a run, beside those of `SUBJECTS`
BY_SUFFIX: Mapping[str, Subject] = {subject.suffix: subject for subject in SUBJECTS}


def subjects_of(crowd: int) -> Sequence[Subject]:
    """`SUBJECTS`, and *crowd* small logs of one partition beside them, which are no fault's aim."""
    more = (
        Subject(suffix=f"_{n:03}", share=CROWD_SHARE / crowd, partitions=1, rules={"layout": {"regions": 2}})
        for n in range(crowd)
    )
    return (*SUBJECTS, *more)


def engines_of(subjects: Sequence[Subject], asked: str, *, seed: int) -> Mapping[str, EngineWord]:
    """What moves each table, by the table's suffix. Of ``both`` each engine has half of them; the seed says which."""
    if asked != BOTH:
        return {subject.suffix: cast("EngineWord", asked) for subject in subjects}
    aims: list[EngineWord] = ["spark", "arrow"] * (len(SUBJECTS) // 2)
    random.Random(seed).shuffle(aims)
    crowd: list[EngineWord] = ["arrow", "spark"] * (len(subjects) // 2)
    return {subject.suffix: word for subject, word in zip(subjects, [*aims, *crowd], strict=False)}


def key_of(number: Number) -> Number:
    return number * 7 % KEYS


def is_misfit(number: int) -> bool:
    """Return whether this record must end in quarantine."""
    return number % _MISFIT_EVERY == _MISFIT_EVERY - 1


def is_early(number: int | Ints) -> Any:
    return number % _EARLY_EVERY == _EARLY_EVERY - 1


def is_delete(number: int | Ints) -> Any:
    return number % _DELETE_EVERY == _DELETE_EVERY - 1


def altered(rows: pa.Table) -> int:
    """How many of *rows* (columns id, n, s) do not belong together."""
    ids = rows.column("id")
    remainder = pc.subtract(ids, pc.multiply(pc.divide(ids, _MODULUS), _MODULUS))
    text = pc.binary_join_element_wise(pa.scalar("row"), pc.cast(ids, pa.string()), pa.scalar(" "))
    fits = pc.and_(pc.equal(pc.cast(rows.column("n"), pa.int64()), remainder), pc.equal(rows.column("s"), text))
    fitting: int = pc.sum(pc.fill_null(fits, False), min_count=0).as_py()
    return int(rows.num_rows - fitting)
