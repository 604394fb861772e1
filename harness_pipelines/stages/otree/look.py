"""Which parts of the batch view are due for a rewrite, at the cost of what changed since the last look.

A worker looks after each merge, which brings a file or a few. What it saw of the view before is kept: of the version
now only the manifests are read that the one before did not have, and only their files are placed in the tree.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from harness_pipelines.layout.files import hiding
from harness_pipelines.layout.rewrites import Placed, Rewrite, Rules
from harness_pipelines.ports.access import HasLake, HasReclusters, HasTables
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.versions import Version
from harness_pipelines.read.clustering import Clustering, layout_of, target_bytes

if TYPE_CHECKING:
    from harness_pipelines.ports.lake import DeleteFile
    from harness_pipelines.ports.lake_writes import FileLists

NOT_BETTER = "the layout would not be better"  #: how the ledger says that a relayout was dropped
FILES_MAX = 400_000  #: of all tables of a process, some 600 bytes each; what was looked at last is kept anyway


class Ports(HasLake, HasReclusters, HasTables, Protocol):
    """The ports that it uses."""


def due(stores: Ports, table: TableRow, version: Version, *, budget_bytes: int) -> list[Rewrite]:
    """The parts of the batch view of *version* that one move of at most *budget_bytes* rewrites. Raises: LakeAway."""
    layout = layout_of(stores, table, version)
    if layout is None or version.batch is None or _was_dropped(stores, table, version):
        return []
    before = _SEEN.take(table.table_id)
    lists = stores.lake.region_lists(table, version.batch.metadata, known=None if before is None else before.lists)
    seen = Seen(lists, layout) if before is None or before.lists.columns != lists.columns else before
    seen.follow(lists, layout)
    rules = Rules(
        target_bytes=target_bytes(table, of_bytes=seen.placed.bytes),
        staged_ratio=table.spec.layout.staged_ratio,
        budget_bytes=budget_bytes,
        left_out=tuple(frozenset(one.files) for one in stores.reclusters.left_out(table)),
    )
    found = seen.placed.due(rules)
    _SEEN.keep(table.table_id, seen)
    return found


def _was_dropped(stores: Ports, table: TableRow, head: Version) -> bool:
    """The last move tried to rewrite this very batch view, and what it staged was not better."""
    last = next(iter(stores.tables.moves(table, stage=Stage.OTREE, limit=1)), None)
    if last is None or not str(last["error"]).startswith(NOT_BETTER):
        return False
    tried_on = stores.tables.version(table, last["base_version"])
    return tried_on is not None and tried_on.batch == head.batch


class Seen:
    """A batch view as the last look had it.

    No two manifests have one name, so any other version may follow: an older one, or one of another ledger.
    """

    def __init__(self, lists: FileLists, layout: Clustering) -> None:
        self.lists = replace(lists, lists={})
        self.placed = Placed(layout.tree, layout.clustered)
        self._deletes: dict[str, DeleteFile] = {}

    def follow(self, lists: FileLists, layout: Clustering) -> None:
        """Go on to the view of *lists*, which has the same columns."""
        placed, before = self.placed, self.lists.lists
        placed.lay_out(layout.tree, layout.clustered)
        gone = [one for name, one in before.items() if name not in lists.lists]
        come = [one for name, one in lists.lists.items() if name not in before]
        files = {file.path: file for one in come for file in one.files}
        paths = {file.path for one in gone for file in one.files}.difference(files)
        shown = {path for one in gone for path in one.deletes}
        hidden = {path: hides for one in come for path, hides in one.deletes.items()}
        for path in shown:
            del self._deletes[path]
        self._deletes |= hidden
        stay = (path for path in {*shown, *hidden} if path in placed and path not in paths and path not in files)
        files |= {path: placed[path] for path in stay}
        now = (hiding(file, self._deletes.get(path)) for path, file in files.items())
        placed.change(paths, [file for file in now if file.path not in placed or placed[file.path] != file])
        self.lists = lists


class Kept:
    """What was seen of each table. One look at a table has it at a time: another one begins without."""

    def __init__(self, files_max: int) -> None:
        self._files_max, self._lock = files_max, Lock()
        self._seen: OrderedDict[int, Seen] = OrderedDict()

    def take(self, table_id: int) -> Seen | None:
        with self._lock:
            return self._seen.pop(table_id, None)

    def keep(self, table_id: int, seen: Seen) -> None:
        """Keep it, and forget tables that were not looked at for longest while there are too many files."""
        with self._lock:
            self._seen[table_id] = seen
            self._seen.move_to_end(table_id)
            while len(self._seen) > 1 and sum(len(one.placed) for one in self._seen.values()) > self._files_max:
                self._seen.popitem(last=False)


_SEEN = Kept(FILES_MAX)
