"""A foreign catalog that follows a table: two workers, lost answers, a backup, another writer, expire, a drop.

One view. The version n has the snapshot n; a foreign one has a negative number. The server's commit is one step and its
note in the ledger is another, so that everything can happen between. So are the note that a file is about to be
registered and the request. A drop notes that it begins, looks at the server, takes the table out, and forgets the
mirror where no worker has begun to follow it again: four steps. A request that was under way when a drop began and
arrives after it is followed, or dropped again, within the hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from harness_pipelines.protocol.lake.mirrors import (
    ForeignInMirror,
    KnownSnapshot,
    MirrorNameTaken,
    MirrorStep,
    Seen,
    judge,
)
from harness_pipelines_tests.model.explorer import Step

OURS = "ours"
SEND = "send"  #: the name of a file is noted, and about to be sent
SEND_LATE = "send late"  #: and a drop began after the note
BEGUN, SEEN, TAKEN = "begun", "seen", "taken"  #: how far a drop is: it has noted, seen the table, nothing is there


class There(NamedTuple):
    """The table at the server."""

    snapshot: int
    version: int | None  #: its property; None: it was registered


class Hand(NamedTuple):
    """What a worker has in hand."""

    epoch: int
    target: int = 0  #: 0: nothing is intended
    seen: There | None = None
    act: str = ""  #: "": it has not looked


class State(NamedTuple):
    head: int
    files: frozenset[int]  #: versions whose files exist
    server: There | None
    backup: There | None
    backed: bool
    restored: bool  #: to a backup, and not followed since
    noted: int | None
    holds: frozenset[int]
    registered: frozenset[int]
    epoch: int  #: of the claim
    hands: tuple[Hand, ...]
    shown: frozenset[int]  #: versions that the server ever said it shows
    left: tuple[int, int, int, int, int]  #: publishes, thefts, backups, foreign commits, expiries
    stopped: bool = False
    drops: int = 0  #: that may still be begun
    dropping: str = ""  #: how far the operator is
    ending: bool = False  #: the ledger has a note that the mirror is being dropped
    dropped: str = ""  #: "lately", or "long ago": not within the hour
    late: bool = False  #: what the server shows was under way when a drop began
    lost: bool = False  #: a drop took it from a worker that follows it; nothing was registered since


@dataclass(frozen=True, slots=True)
class Mirrors:
    """*bad* names what is left out or done wrong (see `mutants`)."""

    publishes: int = 2
    thefts: int = 1
    backups: int = 0
    foreign: int = 1
    expiries: int = 1
    drops: int = 0
    bad: frozenset[str] = frozenset()
    name: str = "mirrors"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "a mirror is stopped by another writer": lambda s: s.stopped,
            "a server went back to a backup": lambda s: s.restored,
            "the server shows what nobody has noted": lambda s: s.server is not None and s.server.version != s.noted,
            "a worker that was replaced still has a commit in hand": lambda s: any(
                hand.epoch < s.epoch and hand.act for hand in s.hands
            ),
            "a version is gone": lambda s: len(s.files) < s.head,
            "a file is registered after the mirror was dropped": lambda s: bool(s.dropped) and s.server is not None,
            "a worker follows what is being dropped": lambda s: s.dropping == SEEN and not s.ending,
            "a drop takes what a worker has noted again": lambda s: s.lost and s.noted is not None and not s.dropping,
            "a worker sleeps until nothing is kept of a dropped mirror": lambda s: (
                s.dropped == "long ago" and any(hand.target and hand.target not in s.files for hand in s.hands)
            ),
        }

    def first(self) -> State:
        left = (self.publishes, self.thefts, self.backups, self.foreign, self.expiries)
        none: frozenset[int] = frozenset()
        return State(1, frozenset({1}), None, None, False, False, None, none, none, 1, (Hand(1),), none, left)._replace(
            drops=self.drops
        )

    def canonical(self, state: State) -> State:
        return state._replace(hands=tuple(sorted(state.hands, key=str)))

    def broken(self, s: State) -> str | None:
        if s.noted is not None and not (s.restored or s.stopped or s.dropping or s.lost) and s.server is None:
            return f"S38: version {s.noted} is noted, and the server has no table"
        if s.server is not None and not s.restored and s.server.snapshot > 0 and s.server.snapshot not in s.files:
            return f"S10: the server shows version {s.server.snapshot}, whose files are gone"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        was, then = before.server, step.then.server
        if not step.what.startswith("mirror."):
            return None
        if was is not None and then is not None and was != then:
            if was.snapshot < 0:
                return "S38: what another writer committed was written over"
            if then.snapshot < was.snapshot:
                return f"S38: the mirror went from version {was.snapshot} back to {then.snapshot}"
        if step.what.startswith("mirror.settle") and step.then.noted not in before.shown:
            return f"S38: version {step.then.noted} is noted, and the server never showed it"
        return None

    def is_goal(self, s: State) -> bool:
        return s.stopped or (s.noted == s.head and s.server == There(s.head, s.head))

    def show(self, s: State) -> str:
        return f"head {s.head}, server {s.server}, noted {s.noted}, holds {sorted(s.holds)}, hands {s.hands}"

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        publishes, thefts, backups, foreign, expiries = s.left
        if publishes:
            then = s._replace(head=s.head + 1, files=s.files | {s.head + 1}, left=(publishes - 1, *s.left[1:]))
            yield Step("tier", "publish", then)
        if thefts:
            hands = (*s.hands, Hand(s.epoch + 1))
            left = (publishes, thefts - 1, *s.left[2:])
            yield Step("thief", "mirror.take_claim", s._replace(epoch=s.epoch + 1, hands=hands, left=left))
        if s.server is not None and backups:
            if not s.backed:
                yield Step("server", "backup", s._replace(backup=s.server, backed=True))
            elif s.backup != s.server:
                left = (*s.left[:2], backups - 1, *s.left[3:])
                yield Step("server", "restore", s._replace(server=s.backup, restored=True, left=left))
        if s.server is not None and foreign:
            left = (*s.left[:3], foreign - 1, expiries)
            yield Step("foreign", "append", s._replace(server=s.server._replace(snapshot=-1), left=left))
            for older in range(1, s.server.snapshot):
                gone = s.server._replace(snapshot=older)
                yield Step("foreign", f"rollback {older}", s._replace(server=gone, restored=True, left=left))
        if expiries:
            reached = {s.head}
            if s.dropped != "long ago":
                reached |= {*s.registered, *(s.holds if "holds_not_kept" not in self.bad else ())}
            if (kept := s.files & reached) != s.files:
                yield Step("expire", "expire", s._replace(files=kept, left=(*s.left[:4], expiries - 1)))
        yield from self._drop(s)
        for at, hand in enumerate(s.hands):
            yield from self._worker(s, at, hand)

    def _drop(self, s: State) -> Iterator[Step[State]]:
        if s.drops and not s.dropping and not s.stopped:
            hands = tuple(hand._replace(act=SEND_LATE) if hand.act == SEND else hand for hand in s.hands)
            begun = s._replace(dropping=BEGUN, ending="drop_not_noted" not in self.bad, hands=hands, drops=s.drops - 1)
            yield Step("operator", "drop.begin", begun)
        if s.dropping == BEGUN:
            yield Step("operator", "drop.look", s._replace(dropping=TAKEN if s.server is None else SEEN))
        if s.dropping == SEEN:
            taken = s._replace(server=None, dropping=TAKEN, late=False, lost=True)
            yield Step("operator", "drop.at_server", taken)
        if s.dropping == TAKEN:
            yield Step("operator", "drop.forget", self._forgotten(s)._replace(dropping=""))
        is_late = s.late and s.server is not None  # it is followed, or dropped again, before the hour ends
        if s.dropped == "lately" and not is_late and not any(_sends(hand) for hand in s.hands):
            yield Step("clock", "hour_ends", s._replace(dropped="long ago"))

    def _forgotten(self, s: State) -> State:
        """Only what nobody has begun to follow again."""
        if not (s.ending or self.bad & {"drop_not_noted", "followed_is_forgotten"}):
            return s
        lately = "long ago" if "dropped_at_once" in self.bad else "lately"
        return s._replace(noted=None, ending=False, dropped=lately, lost=False)

    def _worker(self, s: State, at: int, hand: Hand) -> Iterator[Step[State]]:
        def put(state: State, now: Hand) -> State:
            return state._replace(hands=(*state.hands[:at], now, *state.hands[at + 1 :]))

        held = hand.epoch == s.epoch
        if s.stopped:
            return
        yield Step("worker", "mirror.die", put(s, Hand(hand.epoch)))
        if not hand.target:
            if held:
                holds = frozenset({s.head}) if "intent_replaces" in self.bad else s.holds | {s.head}
                begun = s._replace(holds=holds, dropped="", ending=False)
                yield Step("worker", "mirror.intend", put(begun, Hand(hand.epoch, target=s.head)))
            return
        if not hand.act:
            yield from self._look(s, hand, put)
            return
        if hand.act == MirrorStep.NOTHING:
            if held and s.dropped:  # no row of a mirror that is followed is there to note it in
                yield Step("worker", "mirror.dropped", put(s, Hand(hand.epoch)))
            elif held:
                done = s._replace(noted=hand.target, holds=frozenset({hand.target}))
                yield Step("worker", f"mirror.settle v{hand.target}", put(done, Hand(hand.epoch)))
            else:
                yield Step("worker", "mirror.fenced", put(s, Hand(hand.epoch)))
            return
        yield from self._send(s, hand, put)

    def _look(self, s: State, hand: Hand, put: Callable[[State, Hand], State]) -> Iterator[Step[State]]:
        there = s.server
        seen = None if there is None else Seen(uuid=OURS, snapshot=there.snapshot, version=there.version, names=())
        ours = there is not None and there.snapshot > 0
        known = KnownSnapshot(
            newest=there.snapshot if there is not None and (ours or "foreign_ignored" in self.bad) else None,
            is_of_version=there is not None and (there.version == there.snapshot or "foreign_ignored" in self.bad),
        )
        try:
            act = judge("a view", seen, known, uuids={OURS}, snapshot=hand.target, version=hand.target)
        except (ForeignInMirror, MirrorNameTaken):
            if hand.epoch == s.epoch:
                yield Step("worker", "mirror.stop", put(s._replace(stopped=True), Hand(hand.epoch)))
            else:
                yield Step("worker", "mirror.fenced", put(s, Hand(hand.epoch)))
            return
        if act is MirrorStep.OVERTAKEN and "overtaken_goes_on" not in self.bad:
            yield Step("worker", "mirror.overtaken", put(s, Hand(hand.epoch)))
            return
        yield Step("worker", "mirror.look", put(s, hand._replace(seen=there, act=act.value)))

    def _send(self, s: State, hand: Hand, put: Callable[[State, Hand], State]) -> Iterator[Step[State]]:
        """The answer may be lost: the next step is a look either way."""
        again = hand._replace(act="", seen=None)
        if hand.act == MirrorStep.REGISTER:
            if hand.epoch != s.epoch:
                yield Step("worker", "mirror.fenced", put(s, Hand(hand.epoch)))
            elif self._is_refused(s):
                yield Step("worker", "mirror.dropped", put(s, Hand(hand.epoch)))
            else:
                known = s._replace(registered=s.registered | {hand.target})
                yield Step("worker", "mirror.note_file", put(known, hand._replace(act=SEND)))
            return
        if _sends(hand):
            if s.server is None:
                sent = s._replace(server=There(hand.target, None), late=hand.act == SEND_LATE, lost=False)
                yield Step("worker", f"mirror.register v{hand.target}", put(sent, again))
            else:
                yield Step("worker", "mirror.conflict", put(s, again))
            return
        holds = s.server == hand.seen or ("ref_unasserted" in self.bad and s.server is not None)
        if holds:
            # One that was replaced may come upon a backup by chance: the next round of the holder follows it.
            restored = s.restored and hand.epoch != s.epoch
            shown = s.shown | {hand.target}
            done = s._replace(server=There(hand.target, hand.target), restored=restored, shown=shown)
            yield Step("worker", f"mirror.commit v{hand.target}", put(done, again))
        elif "conflict_is_success" in self.bad:
            yield Step("worker", "mirror.conflict", put(s, hand._replace(act=MirrorStep.NOTHING.value)))
        else:
            yield Step("worker", "mirror.conflict", put(s, again))

    def _is_refused(self, s: State) -> bool:
        """Return whether a file may not be registered: its mirror was dropped, or is being dropped."""
        dropped = bool(s.dropped) and "registered_unasked" not in self.bad
        return dropped or (s.ending and not self.bad & {"registered_unasked", "registered_while_dropped"})


def _sends(hand: Hand) -> bool:
    return hand.act in {SEND, SEND_LATE}
