"""Keyed tables: what makes the offset the clock of a key's versions."""

from __future__ import annotations

from collections.abc import Collection

from harness_pipelines.errors import HarnessError
from harness_pipelines.spec.predicate import PARTITION, Predicate, refs, relaxed

PUT, DELETE = "put", "delete"


class KeyInTwoPartitions(HarnessError):
    """A key has versions in two partitions, so offsets cannot order them."""

    way_on = "produce by key into a new topic, with its own table"


class PartitionsGrown(HarnessError):
    """The topic of a keyed table has more partitions than when the table was made: keys may have moved."""

    way_on = "produce by key into a new topic, with its own table"


def key_in_two_partitions(
    table: str, key: str, *, first: tuple[object, object], second: tuple[object, object]
) -> KeyInTwoPartitions:
    """*first* and *second* are coordinates (partition, offset) of two versions of *key*, as text for people."""
    return KeyInTwoPartitions(
        f"{table}: key {key} is in partition {first[0]} (offset {first[1]}) and in partition {second[0]} (offset "
        f"{second[1]}), so nothing tells which is newer; nothing was returned or moved. Produce with the key as "
        "the record's key to a topic of a fixed number of partitions, and apply the table again over it"
    )


def on_all_versions(where: Predicate, key: Collection[str]) -> Predicate:
    """What of *where* holds for all versions of a key or for none: the part that a scan may be asked before the fold.

    These are the predicates on the columns of *key* and on the partition. Any other one could drop the newest version
    and let an older one through.
    """
    same = {*key, PARTITION}
    return relaxed(where, lambda leaf: all(ref.column in same for ref in refs(leaf)))


def partitions_grown(table: str, *, known: Collection[int], added: Collection[int]) -> PartitionsGrown:
    """*known* are the partitions that the table was made from, *added* those that the topic has gained since."""
    now = len(known) + len(added)
    return PartitionsGrown(
        f"{table}: its topic had {len(known)} partitions and has {now} now, so a key may have moved to partition "
        f"{', '.join(map(str, sorted(added)))}, and nothing would tell which of its versions is newer; no more is "
        "taken. Copy the topic to one with the new number of partitions, and apply the table over that one"
    )
