"""How long ingest lets records gather before it commits them, by what a table promises and how busy the process is.

Each commit costs a transaction, however few records it has. A record that comes after a pause never waits: the time
counts from the last commit.
"""

from __future__ import annotations

AT_ONCE_S = 0.1  #: a table that promises this, or less, is committed as fast as it goes
OF_OBJECTIVE = 1 / 20  #: of what others promise: so long records gather while the process has room
OF_OBJECTIVE_MAX = 1 / 2  #: and so long at most, with the commit; the rest is for what else may be slow
ROOM = 0.7  #: share of the processors from which on the process counts as busy


def commit_every_s(visible_s: float, *, commit_s: float, load: float) -> float:
    """Seconds from the begin of one commit to that of the next one, while records keep coming.

    *visible_s* is the objective of the table (`freshness.visible`), *commit_s* what the last commit took, *load* the
    share of the processors that the process used lately, from 0 to 1. With a commit it never takes more than half of
    the objective, unless the commit alone does: then the next one follows at once.
    """
    most = max(0.0, visible_s * OF_OBJECTIVE_MAX - commit_s)
    least = 0.0 if visible_s <= AT_ONCE_S else visible_s * OF_OBJECTIVE
    busy = min(max((load - ROOM) / (1 - ROOM), 0.0), 1.0)
    return min(least + busy * max(0.0, most - least), most)
