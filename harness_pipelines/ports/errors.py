"""What the systems behind a table find wrong. Each message says what was expected, what was found, and the way on."""

from __future__ import annotations

from collections.abc import Sequence

from harness_pipelines.errors import HarnessError, Recovery, TryAgain, UsageError
from harness_pipelines.protocol.topics import place


class KafkaUnreachable(TryAgain):
    """No broker of the cluster answered within the time allowed; nothing was written."""

    way_on = "nothing: workers go on by themselves; is HARNESS_KAFKA right?"

    def __init__(self, bootstrap: str, *, waited_s: float, doing: str, detail: str = "") -> None:
        self.bootstrap, self.waited_s, self.doing = bootstrap, waited_s, doing
        because = f" ({detail})" if detail else ""
        super().__init__(
            f"Kafka at {bootstrap} gave no answer for {waited_s:.1f} s while {doing}{because}; nothing was written. "
            "Check that the broker runs and that HARNESS_KAFKA names it, then run the same command again"
        )


class KafkaPropertyRefused(UsageError):
    """A property given for the Kafka client is unknown, has a bad value, or belongs to the harness."""


class KafkaLoginFailed(HarnessError):
    """The broker answered and refused who we say we are."""

    way_on = "`HARNESS_KAFKA_*`; then start the worker again"

    def __init__(self, bootstrap: str, *, detail: str) -> None:
        self.bootstrap = bootstrap
        super().__init__(
            f"the login at Kafka {bootstrap} failed: {detail}. Check HARNESS_KAFKA_SECURITY_PROTOCOL, "
            "HARNESS_KAFKA_SASL_* and HARNESS_KAFKA_SSL_*; the embedded broker's login is found without HARNESS_KAFKA, "
            "and `harness services kafka` prints it"
        )


class KafkaFailed(HarnessError):
    """The Kafka client gave up for a reason that has no error class."""

    recovery = Recovery.REFRESH

    def __init__(self, bootstrap: str, *, doing: str, detail: str) -> None:
        self.bootstrap, self.doing = bootstrap, doing
        super().__init__(f"Kafka at {bootstrap} failed while {doing}: {detail}; nothing was written")


class TopicForbidden(HarnessError):
    """The topic may exist, but this user may not look at it or read it."""

    way_on = "give the user Describe and Read on the topic"

    def __init__(self, topic: str, *, bootstrap: str) -> None:
        self.topic, self.bootstrap = topic, bootstrap
        super().__init__(
            f"topic {topic!r} at {bootstrap} may not be read by this user; nothing was read. "
            "Grant DESCRIBE and READ on the topic, or log in as another user"
        )


class TopicMissing(HarnessError):
    """The cluster answered and knows no such topic."""

    way_on = "create the topic, or correct `topic`"

    def __init__(self, topic: str, *, bootstrap: str) -> None:
        self.topic, self.bootstrap = topic, bootstrap
        super().__init__(
            f"topic {topic!r} does not exist at {bootstrap}. Create it, or correct `topic` in the spec. If it was "
            "deleted under a table, what was ingested stays readable; a topic created anew needs a new table"
        )


class TopicCompacted(UsageError):
    """Kafka drops records of the topic that have a successor, and the table would keep every record."""

    way_on = "give the spec a `key`, or the topic `cleanup.policy=delete`"

    def __init__(self, topic: str, *, table: str, policy: str) -> None:
        self.topic, self.policy = topic, policy
        super().__init__(
            f"{table} keeps every record (it has no `key`), but topic {topic!r} is compacted "
            f"(cleanup.policy={policy}): Kafka drops records of it, taken or not, and nothing would tell which; "
            "nothing was made. "
            "Give the spec a `key`, so that the newest record of each key counts; or set cleanup.policy=delete"
        )


class TopicRecreated(HarnessError):
    """A topic of the same name, but not the one that the table follows: offsets mean other records now."""

    way_on = "let HARNESS_KAFKA lead to the old cluster; else the spec under another name"

    def __init__(self, topic: str, *, expected_id: str, found_id: str) -> None:
        self.topic, self.expected_id, self.found_id = topic, expected_id, found_id
        super().__init__(
            f"topic {topic!r} was deleted and created again: expected topic id {expected_id}, found {found_id}; "
            "nothing was written. The table keeps the records of the old topic; apply a new table for the new one"
        )


class ClusterChanged(HarnessError):
    """The bootstrap address leads to another cluster than the one that the table follows."""

    way_on = "let HARNESS_KAFKA lead to the cluster that the table was made from; else the spec under another name"

    def __init__(self, topic: str, *, expected_id: str, found_id: str) -> None:
        self.topic, self.expected_id, self.found_id = topic, expected_id, found_id
        super().__init__(
            f"topic {topic!r} is on another Kafka cluster now: expected cluster id {expected_id}, found {found_id}; "
            "nothing was written. Point HARNESS_KAFKA back at the cluster of the table"
        )


class PartitionsMissing(HarnessError):
    """The topic has fewer partitions than the table follows, which Kafka never does to a living topic."""

    way_on = "restore the broker; else the spec under another name"

    def __init__(self, topic: str, *, expected: Sequence[int], found: Sequence[int]) -> None:
        self.topic, self.expected, self.found = topic, tuple(expected), tuple(found)
        gone = sorted(set(expected) - set(found))
        super().__init__(
            f"topic {topic!r} has no partition {', '.join(map(str, gone))}: expected partitions {sorted(expected)}, "
            f"found {sorted(found)}; nothing was written. The topic is not the one that the table follows"
        )


class LogTruncated(HarnessError):
    """The log ends below the position: records that were read are gone from Kafka (an unclean leader election)."""

    way_on = "restore the broker before anything new is produced; else the spec under another name"

    def __init__(self, topic: str, *, partition: int, expected: int, end: int) -> None:
        self.topic, self.partition, self.expected, self.end = topic, partition, expected, end
        name, there = place(topic, partition)
        super().__init__(
            f"topic {name!r} partition {there} ends at offset {end}, below the position {expected}: Kafka lost "
            f"[{end}, {expected}) after it was read; nothing was written. New records would reuse these offsets, so "
            "the table stops here and stays readable. Restore the broker from a replica that has them before anything "
            "new is produced; else apply the spec under another name to go on"
        )


class LogRewritten(HarnessError):
    """The log was cut below the position and has grown again: other records have the offsets of what was read."""

    way_on = "the spec under another name"

    def __init__(self, topic: str, *, partition: int, position: int, expected: int, found: int) -> None:
        self.topic, self.partition, self.position = topic, partition, position
        name, there = place(topic, partition)
        super().__init__(
            f"topic {name!r} partition {there}: the last record below the position {position} is of leader epoch "
            f"{found}, the table read it in epoch {expected}: Kafka lost records after they were read (an unclean "
            "leader election) and gave their offsets to others; nothing was written. The table stops here and stays "
            "readable; apply the spec under another name to take the log as it is now"
        )


class RecordsLost(HarnessError):
    """The log starts above the position: retention removed records that were never read."""

    way_on = "stop the worker, `harness accept-loss`, start it; then find out why ingest stood still"

    def __init__(self, topic: str, *, partition: int, expected: int, log_start: int) -> None:
        self.topic, self.partition, self.expected, self.log_start = topic, partition, expected, log_start
        name, there = place(topic, partition)
        super().__init__(
            f"topic {name!r} partition {there} starts at offset {log_start}, above the position {expected}: "
            f"retention removed [{expected}, {log_start}) before it was read; nothing was written. Restore these "
            "records, or stop the worker and go on behind them: "
            f"`harness accept-loss TABLE --partition {partition} --to {log_start} --yes`"
        )


class RecordUnreadable(HarnessError):
    """The bytes of a record batch are damaged (checksum, compression): the log itself is sick, not one value."""

    way_on = "restore the broker's log from a replica"

    def __init__(self, topic: str, *, partition: int, position: int, detail: str) -> None:
        self.topic, self.partition, self.position = topic, partition, position
        super().__init__(
            f"topic {topic!r} partition {partition}: the batch at or after offset {position} cannot be read: {detail}; "
            "nothing was written. Restore it from another replica, or delete the records up to it and accept the loss"
        )


class LakeFileMissing(HarnessError):
    """A metadata file, manifest or data file that a read plan reaches is not there."""

    way_on = "`harness fsck TABLE`; copy it back, or `harness revert` to a version that does not need it"


class LakeFileBroken(HarnessError):
    """A file that a read plan reaches is there, but is not what was written: cut off, or written over."""

    way_on = (
        "`harness fsck TABLE`; copy it back, or `harness reconcile TABLE --repair-file FILE --dry-run`, then `--yes`"
    )


class LakeUnreadable(TryAgain):
    """The storage of the lake did not answer as it should."""


class MetadataMissing(HarnessError):
    """A metadata file that the ledger names cannot be read."""

    way_on = "`harness fsck TABLE`; copy it back, or `harness revert` to a version that does not need it"


class ManifestDamaged(MetadataMissing):
    """A manifest, or a list of them, cannot be understood: it was cut off or overwritten."""

    way_on = "copy it back, or `harness revert` to a version that does not need it"


class StagedWrong(HarnessError):
    """What Spark staged is not what the move said; it is never published."""

    recovery = Recovery.REFRESH


class BaseGone(HarnessError):
    """The base snapshot of a move is not in the view's metadata any more: plan the move again."""

    recovery = Recovery.REFRESH


class LakeAway(TryAgain):
    """The warehouse could not be read or written: full, unreachable, or not ours to write."""

    way_on = "mount the warehouse, make room, or give the user its rights; workers go on by themselves"


class LakeHistoryMissing(HarnessError):
    """No metadata from which the table could be taken over."""

    way_on = "bring the warehouse back from a backup"


class WarehouseTaken(HarnessError):
    """The warehouse belongs to another ledger, or to another copy of this one."""

    way_on = (
        "another HARNESS_WAREHOUSE; `harness reconcile` with `--take-over` only if the other ledger is gone for good"
    )


class ForeignDeletes(HarnessError):
    """A view has deletes that the harness did not write: of equality, or of several data files."""

    way_on = "`harness revert TABLE --to HEAD --yes`"


class DeletesBroken(HarnessError):
    """A delete file does not hold what its view says of it: it was damaged, or written over."""

    way_on = "`harness fsck TABLE`; copy the file back, or `harness revert` to a version that does not need it"


class TableHeld(TryAgain):
    """Somebody works on the table; nothing was changed."""

    way_on = "stop the worker that the message names, or wait for its lease (30 s)"


class LedgerOlderThanLake(HarnessError):
    """The lake names moves that the ledger does not have: it lost a part of its history."""

    way_on = "stop the worker, `harness reconcile TABLE --dry-run`, then `--yes`"


class SparkInterrupted(TryAgain):
    """Work on Spark was given up because this process ends; whoever moves next begins it again."""
