"""Errors of the systems behind a table. Each message states the expected and the found value and the remedy."""

from __future__ import annotations

from collections.abc import Sequence

from harness_pipelines.errors import HarnessError, Recovery, TryAgain, UsageError
from harness_pipelines.protocol.topics import place


class KafkaUnreachable(TryAgain):
    """No broker of the cluster answered within the time allowed; nothing was written."""

    way_on = "nothing: workers continue automatically; check HARNESS_KAFKA"

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
    """The broker answered and refused the login."""

    way_on = "`HARNESS_KAFKA_*`; then start the worker again. After a change at the broker it continues by itself"

    def __init__(self, bootstrap: str, *, detail: str) -> None:
        self.bootstrap = bootstrap
        super().__init__(
            f"the login at Kafka {bootstrap} failed: {detail}. Check HARNESS_KAFKA_SECURITY_PROTOCOL, "
            "HARNESS_KAFKA_SASL_* and HARNESS_KAFKA_SSL_*; without HARNESS_KAFKA the embedded broker's login is used, "
            "and `harness services kafka` prints it. A worker tries again by itself; another login it takes when it is "
            "started again"
        )


class KafkaFailed(HarnessError):
    """The Kafka client failed with an error that has no class."""

    recovery = Recovery.REFRESH

    def __init__(self, bootstrap: str, *, doing: str, detail: str) -> None:
        self.bootstrap, self.doing = bootstrap, doing
        super().__init__(f"Kafka at {bootstrap} failed while {doing}: {detail}; nothing was written")


class TopicForbidden(HarnessError):
    """The topic may exist, but this user has no right to describe or read it."""

    way_on = "give the user Describe and Read on the topic"

    def __init__(self, topic: str, *, bootstrap: str) -> None:
        self.topic, self.bootstrap = topic, bootstrap
        super().__init__(
            f"this user has no right to read topic {topic!r} at {bootstrap}; nothing was read. "
            "Grant DESCRIBE and READ on the topic, or log in as another user"
        )


class TopicMissing(HarnessError):
    """The cluster answered and knows no such topic."""

    way_on = "create the topic, or correct `topic`"

    def __init__(self, topic: str, *, bootstrap: str, near: str | None = None) -> None:
        """*near*: a topic that is there and may be meant."""
        self.topic, self.bootstrap = topic, bootstrap
        meant = f" (did you mean {near!r}?)" if near else ""
        super().__init__(
            f"topic {topic!r} does not exist at {bootstrap}{meant}. Create it, or correct `topic` in the spec. If it "
            "was deleted under a table, what was ingested stays readable; a recreated topic needs a new table"
        )


class TopicCompacted(UsageError):
    """The topic is compacted, so Kafka drops records with a newer one, but the table must keep every record."""

    way_on = "add a `key` to the spec, or set `cleanup.policy=delete` on the topic"

    def __init__(self, topic: str, *, table: str, policy: str) -> None:
        self.topic, self.policy = topic, policy
        super().__init__(
            f"{table} keeps every record (it has no `key`), but topic {topic!r} is compacted "
            f"(cleanup.policy={policy}): Kafka drops records of it, ingested or not, without a trace; "
            "nothing was created. "
            "Add a `key` to the spec, so that the newest record of each key wins; or set cleanup.policy=delete"
        )


class TopicRecreated(HarnessError):
    """The topic was recreated under the same name: its offsets now mean other records."""

    way_on = "point HARNESS_KAFKA to the old cluster; else apply the spec under another name"

    def __init__(self, topic: str, *, expected_id: str, found_id: str) -> None:
        self.topic, self.expected_id, self.found_id = topic, expected_id, found_id
        super().__init__(
            f"topic {topic!r} was deleted and created again: expected topic id {expected_id}, found {found_id}; "
            "nothing was written. The table keeps the records of the old topic; apply a new table for the new one"
        )


class ClusterChanged(HarnessError):
    """The bootstrap address belongs to another cluster than the table's."""

    way_on = "point HARNESS_KAFKA to the table's cluster; else apply the spec under another name"

    def __init__(self, topic: str, *, expected_id: str, found_id: str) -> None:
        self.topic, self.expected_id, self.found_id = topic, expected_id, found_id
        super().__init__(
            f"topic {topic!r} is on another Kafka cluster now: expected cluster id {expected_id}, found {found_id}; "
            "nothing was written. Point HARNESS_KAFKA back at the cluster of the table"
        )


class PartitionsMissing(HarnessError):
    """The topic has fewer partitions than the table follows; Kafka never removes partitions of an existing topic."""

    way_on = "restore the broker; else apply the spec under another name"

    def __init__(self, topic: str, *, expected: Sequence[int], found: Sequence[int]) -> None:
        self.topic, self.expected, self.found = topic, tuple(expected), tuple(found)
        gone = sorted(set(expected) - set(found))
        super().__init__(
            f"topic {topic!r} has no partition {', '.join(map(str, gone))}: expected partitions {sorted(expected)}, "
            f"found {sorted(found)}; nothing was written. The topic is not the one that the table follows"
        )


class LogTruncated(HarnessError):
    """The log ends below the position: Kafka lost records that were read (an unclean leader election)."""

    way_on = "restore the broker before anything new is produced; else apply the spec under another name"

    def __init__(self, topic: str, *, partition: int, expected: int, end: int) -> None:
        self.topic, self.partition, self.expected, self.end = topic, partition, expected, end
        name, there = place(topic, partition)
        super().__init__(
            f"topic {name!r} partition {there} ends at offset {end}, below the position {expected}: Kafka lost "
            f"[{end}, {expected}) after it was read; nothing was written. New records would reuse these offsets, so "
            "the table stops here and stays readable. Restore the broker from a replica that has them before anything "
            "new is produced; else apply the spec under another name to continue"
        )


class LogRewritten(HarnessError):
    """The log was truncated below the position and has grown again: other records now have offsets that were read."""

    way_on = "apply the spec under another name"

    def __init__(self, topic: str, *, partition: int, position: int, expected: int, found: int) -> None:
        self.topic, self.partition, self.position = topic, partition, position
        name, there = place(topic, partition)
        super().__init__(
            f"topic {name!r} partition {there}: the last record below the position {position} has leader epoch "
            f"{found}, the table read it in epoch {expected}: Kafka lost records after they were read (an unclean "
            "leader election) and reused their offsets; nothing was written. The table stops here and stays "
            "readable; apply the spec under another name to ingest the log as it is now"
        )


class RecordsLost(HarnessError):
    """The log starts above the position: retention removed records that were never read."""

    way_on = "stop the worker, run `harness accept-loss`, start it; then find out why ingest had stopped"

    def __init__(self, topic: str, *, partition: int, expected: int, log_start: int) -> None:
        self.topic, self.partition, self.expected, self.log_start = topic, partition, expected, log_start
        name, there = place(topic, partition)
        super().__init__(
            f"topic {name!r} partition {there} starts at offset {log_start}, above the position {expected}: "
            f"retention removed [{expected}, {log_start}) before it was read; nothing was written. Restore these "
            "records, or stop the worker and continue after them: "
            f"`harness accept-loss TABLE --partition {partition} --to {log_start} --yes`"
        )


class RecordUnreadable(HarnessError):
    """The bytes of a record batch are damaged (checksum, compression): the log is damaged, not one value."""

    way_on = "restore the broker's log from a replica"

    def __init__(self, topic: str, *, partition: int, position: int, detail: str) -> None:
        self.topic, self.partition, self.position = topic, partition, position
        super().__init__(
            f"topic {topic!r} partition {partition}: the batch at or after offset {position} cannot be read: {detail}; "
            "nothing was written. Restore it from another replica, or delete the records up to it and accept the loss"
        )


class LakeFileMissing(HarnessError):
    """A metadata file, manifest or data file of a read plan is missing."""

    way_on = "`harness fsck TABLE`; copy it back, or `harness revert` to a version that does not need it"


class LakeFileBroken(HarnessError):
    """A file of a read plan exists but its content changed: it was truncated or overwritten."""

    way_on = (
        "`harness fsck TABLE`; copy it back, or `harness reconcile TABLE --repair-file FILE --dry-run`, then `--yes`"
    )


class LakeUnreadable(TryAgain):
    """The storage of the lake failed."""


class MetadataMissing(HarnessError):
    """A metadata file that the ledger names cannot be read."""

    way_on = "`harness fsck TABLE`; copy it back, or `harness revert` to a version that does not need it"


class ManifestDamaged(MetadataMissing):
    """A manifest or manifest list cannot be parsed: it was truncated or overwritten."""

    way_on = "copy it back, or `harness revert` to a version that does not need it"


class StagedWrong(HarnessError):
    """The files that Spark staged do not match the move; they are never published."""

    recovery = Recovery.REFRESH


class BaseGone(HarnessError):
    """The base snapshot of a move is no longer in the view's metadata: plan the move again."""

    recovery = Recovery.REFRESH


class LakeAway(TryAgain):
    """The warehouse could not be read or written: it is full, unreachable or not writable."""

    way_on = "mount the warehouse, free space, or grant the user its rights; workers continue automatically"


class FilesKept(HarnessError):
    """The store kept some of the files that expire asked it to delete; it deleted the others."""

    way_on = "end the object locks or legal holds on files of the warehouse; expire asks again at each run"


class LakeHistoryMissing(HarnessError):
    """The lake has no metadata from which the table can be rebuilt."""

    way_on = "restore the warehouse from a backup"


class WarehouseTaken(HarnessError):
    """The warehouse belongs to another ledger, or to another copy of this one."""

    way_on = (
        "another HARNESS_WAREHOUSE; `harness reconcile` with `--take-over` only if the other ledger is gone for good"
    )


class ForeignDeletes(HarnessError):
    """A view has delete files that the harness did not write: equality deletes, or deletes for several data files."""

    way_on = "`harness revert TABLE --to HEAD --yes`"


class DeletesBroken(HarnessError):
    """A delete file does not match its manifest entry: it was damaged or overwritten."""

    way_on = "`harness fsck TABLE`; copy the file back, or `harness revert` to a version that does not need it"


class QuarantineNameTaken(HarnessError):
    """The catalog has another table under the name of the quarantine table."""

    way_on = "rename or drop that table, or raise `quarantine_mb`"


class MovedMeanwhile(HarnessError):
    """Another process moved the same bytes; nothing was written."""

    recovery = Recovery.REFRESH


class BuiltGone(TryAgain):
    """Files that were written for a commit were removed, or are about to be; nothing was written."""

    way_on = "run it again; nothing was changed"

    @classmethod
    def of(cls, table: str, path: str) -> BuiltGone:
        return cls(
            f"{table}: {path} was written for this commit, or found for it, and expire has removed it meanwhile or is "
            "about to: too long ago for a commit. Nothing was changed; run the same command again"
        )


class TableHeld(TryAgain):
    """A worker holds the table; nothing was changed."""

    way_on = "stop the worker that the message names, or wait until its lease ends (30 s)"


class LedgerOlderThanLake(HarnessError):
    """The lake names moves that the ledger does not have: the ledger lost a part of its history."""

    way_on = "stop the worker, `harness reconcile TABLE --dry-run`, then `--yes`"


class SparkInterrupted(TryAgain):
    """Work on Spark was cancelled because this process ends; the next worker starts it again."""


class MirrorAway(TryAgain):
    """A foreign catalog does not answer, or its server has an error; the table continues."""

    way_on = "see to the catalog's server; workers ask again by themselves"


class MirrorLoginFailed(HarnessError):
    """A foreign catalog refused the login, or the right to do what the mirror needs."""

    way_on = "correct `catalogs` `properties`, or give the login the rights to register, load and commit tables"
    recovery = Recovery.REFRESH


class MirrorNamespaceMissing(HarnessError):
    """A foreign catalog lacks the namespace of a mirror."""

    way_on = "create the namespace there, or write another `namespace` under `catalogs`"
    recovery = Recovery.REFRESH


class MirrorRefused(HarnessError):
    """A foreign catalog refused what the mirror asked of it."""

    way_on = "`harness mirror probe TABLE` shows what the server can do"
    recovery = Recovery.REFRESH


class QueryFailed(UsageError):
    """An engine refused a query, or could not finish it."""


class MirrorUndecided(TryAgain):
    """A foreign catalog gave no answer to a commit, or one that may hide a success: what it shows is read next."""

    way_on = "nothing: the worker reads what the catalog shows and continues from there"


class MirrorsLeft(UsageError):
    """A table is to be dropped while foreign catalogs still name its files; nothing was changed."""

    way_on = "`harness mirror drop TABLE --catalog NAME --yes`; `--forget` where its server is gone for good"
