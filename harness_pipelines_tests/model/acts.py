"""Acts that no open move stands for, beside expire: replay, evolve, revert, and expire's own drop of branches.

Each builds a metadata file on what the catalog names, stands still for as long as it likes, and then publishes it or is
refused. Two holders of expire follow each other. Metadata file 1 is the first; what is built is named 2, 3, ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from harness_pipelines_tests.model import build
from harness_pipelines_tests.model.explorer import Step

Names = tuple[int, ...]


class Built(NamedTuple):
    """A metadata file that is written and that nobody names yet."""

    file: int
    base: int  #: what the catalog named then
    lately: bool = True  #: the act was begun within the hour
    epoch: int = 0  #: of the claim of expire, where its holder built it
    checked: bool = False


class State(NamedTuple):
    pointer: int  #: the metadata file that the catalog names
    stored: Names
    old: Names  #: written longer than the grace ago
    condemned: Names
    ripe: Names  #: condemned for longer than the grace
    act: Built | tuple[()]
    drop: Built | tuple[()]  #: of branches, by the holder of expire of then
    epoch: int  #: of the claim of expire
    marking: tuple[Names] | tuple[()]  #: what condemn has seen as reached, before it marks
    chosen: Names  #: ripe when it was looked at under the trim lock
    going: tuple[Names] | tuple[()]  #: of these, what was not reached after that
    files: int
    acts: int  #: that may still be begun
    drops: int
    published: int


@dataclass(frozen=True, slots=True)
class Acts:
    """*acts* acts and *drops* drops of branches; *bad* names what is left out (see `mutants`)."""

    acts: int = 2
    drops: int = 1
    bad: frozenset[str] = frozenset()
    name: str = "acts"

    @property
    def witnesses(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "an act has published": lambda s: s.published > 0,
            "what an act built is gone when it wakes": lambda s: bool(s.act) and s.act.file not in s.stored,
            "what a holder built is gone when it wakes": lambda s: bool(s.drop) and s.drop.file not in s.stored,
            "an act sleeps while its file is about to be deleted": lambda s: (
                bool(s.act) and bool(s.going) and s.act.file in s.going[0]
            ),
        }

    def first(self) -> State:
        none: Names = ()
        return State(
            *(1, (1,), none, none, none, (), (), 1, (), none, ()),
            files=1,
            acts=self.acts,
            drops=self.drops,
            published=0,
        )

    def canonical(self, state: State) -> State:
        return state

    def broken(self, s: State) -> str | None:
        if s.pointer not in s.stored:
            return f"S10: the catalog names metadata file {s.pointer}, which is gone"
        if s.act and s.act.lately and s.act.file in (*s.condemned, *sorted({s.act.file} - set(s.stored))):
            return f"S27: file {s.act.file} of an act that was begun within the hour is condemned"
        return None

    def broke(self, before: State, step: Step[State]) -> str | None:
        return None

    def is_goal(self, s: State) -> bool:
        return s.stored == (s.pointer,) and not (s.act or s.drop or s.acts or s.drops)

    def show(self, s: State) -> str:
        return (
            f"the catalog names {s.pointer} of {list(s.stored)}, condemned {list(s.condemned)}, built {s.act} {s.drop}"
        )

    # -- steps ----------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[Step[State]]:
        yield from self._act(s)
        yield from self._drop(s)
        yield from self._clock(s)
        if not (s.drop and s.drop.epoch == s.epoch):  # else the holder of expire is the one that sleeps
            yield from self._expire(s)

    def _act(self, s: State) -> Iterator[Step[State]]:
        if not s.act:
            if s.acts:
                begun = _built(s)._replace(act=Built(s.files + 1, s.pointer), acts=s.acts - 1)
                yield Step("operator", f"act.build {s.files + 1} on {s.pointer}", begun)
            return
        over = s._replace(act=())
        if not s.act.checked and (s.act.base != s.pointer or not self._is_kept(s, s.act, "acts_unchecked")):
            yield Step("operator", "act.refused", over)
        elif "acts_without_trim_lock" in self.bad and not s.act.checked:
            yield Step("operator", "act.check", s._replace(act=s.act._replace(checked=True)))
        elif s.act.base == s.pointer:
            yield Step("operator", f"act.publish {s.act.file}", over._replace(pointer=s.act.file, published=1))
        else:
            yield Step("operator", "act.refused", over)

    def _drop(self, s: State) -> Iterator[Step[State]]:
        if s.drop:
            over = s._replace(drop=())
            fenced = s.drop.epoch != s.epoch and "drop_unfenced" not in self.bad
            if s.drop.base == s.pointer and not fenced and self._is_kept(s, s.drop, "drop_unchecked"):
                yield Step("expire", "expire.drop_branches", over._replace(pointer=s.drop.file))
            else:
                yield Step("expire", "expire.drop_refused", over)
        elif s.drops and not (s.marking or s.chosen or s.going):
            begun = _built(s)._replace(drop=Built(s.files + 1, s.pointer, epoch=s.epoch), drops=s.drops - 1)
            yield Step("expire", f"expire.build_drop {s.files + 1}", begun)

    def _is_kept(self, s: State, built: Built, unchecked: str) -> bool:
        if unchecked in self.bad:
            return True
        return built.file in s.stored and (built.file not in s.condemned or "condemned_published" in self.bad)

    def _clock(self, s: State) -> Iterator[Step[State]]:
        if young := tuple(n for n in s.stored if n not in s.old):
            yield Step("clock", "files_age", s._replace(old=tuple(sorted((*s.old, *young)))))
        if set(s.condemned) - set(s.ripe):
            yield Step("clock", "grace_ends", s._replace(ripe=s.condemned))
        if s.act and s.act.lately:
            yield Step("clock", "hour_ends", s._replace(act=s.act._replace(lately=False)))
        if s.drop and s.drop.epoch == s.epoch:  # its lease has ended, another one takes the claim
            yield Step("clock", "expire.take_over", s._replace(epoch=s.epoch + 1))

    def _expire(self, s: State) -> Iterator[Step[State]]:
        if s.marking:
            yield Step("expire", "expire.condemn", self._condemned(s, s.marking[0]))
        elif self._condemned(s, (s.pointer,)) != s:
            yield Step("expire", "expire.look_reached", s._replace(marking=((s.pointer,),)))
        if s.going:
            yield Step("expire", f"expire.delete {list(s.going[0])}", _removed(s, s.going[0]))
        elif s.chosen:
            looked = tuple(n for n in s.chosen if n != s.pointer)
            yield Step("expire", "expire.recheck", s._replace(chosen=(), going=(looked,) if looked else ()))
        elif s.ripe:
            yield Step("expire", "expire.lock", s._replace(chosen=s.ripe))

    def _condemned(self, s: State, reached: Names) -> State:
        mine = s.act.file if s.act else 0
        counts = bool(mine) and "acts_not_reserved" not in self.bad and (s.act.lately if s.act else False)
        names = []
        for name in s.stored:
            if name not in reached and build.may_condemn(name in s.old, name == mine, counts and name == mine):
                names.append(name)
        ripe = tuple(n for n in s.ripe if n in names)
        return s._replace(condemned=tuple(names), ripe=ripe, marking=())


def _built(s: State) -> State:
    return s._replace(stored=tuple(sorted((*s.stored, s.files + 1))), files=s.files + 1)


def _removed(s: State, gone: Names) -> State:
    def left(names: Names) -> Names:
        return tuple(n for n in names if n not in gone)

    return s._replace(stored=left(s.stored), old=left(s.old), condemned=left(s.condemned), ripe=left(s.ripe), going=())
