"""An explicit-state model checker: breadth first, so the first counterexample is a shortest one.

A model is a first state and, for each state, the steps that may come next. States are hashable values. `explore` visits
every state once and judges it; a run ends at the first violation, or says how many states hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S")


class Step(NamedTuple, Generic[S]):
    """One atomic change: *who* does *what*, and the state *then*. The first word of *what* names the action."""

    who: str
    what: str
    then: S


class Model(Protocol[S]):
    """What `explore` needs of a model."""

    @property
    def name(self) -> str: ...
    @property
    def witnesses(self) -> Mapping[str, Callable[[S], bool]]:
        """Interesting states that must be reachable, by name."""

    def first(self) -> S: ...
    def steps(self, state: S) -> Iterable[Step[S]]: ...
    def canonical(self, state: S) -> S:
        """The one state that stands for all that differ from *state* only by the names of workers."""

    def broken(self, state: S) -> str | None:
        """The invariant that does not hold in *state*, with its numbers; ``None`` if all hold."""

    def broke(self, before: S, step: Step[S]) -> str | None:
        """The invariant that this *step* breaks; ``None`` if it breaks none."""

    def is_goal(self, state: S) -> bool:
        """True where all work is done: such a state must stay reachable from every state."""

    def show(self, state: S) -> str:
        """What matters of *state*, on one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an exploration found."""

    model: str
    states: int
    transitions: int
    depth: int  #: steps of the longest shortest path
    seconds: float  #: of processor time
    violation: str | None  #: the broken invariant
    trace: str  #: the shortest way to it, one line per step
    witnessed: frozenset[str]
    actions: frozenset[str]  #: first words of all steps that were taken

    def __str__(self) -> str:
        head = f"{self.model}: {self.states:,} states, {self.transitions:,} transitions, depth {self.depth}, "
        found = "no violation" if self.violation is None else f"VIOLATED: {self.violation}\n{self.trace}"
        return f"{head}{self.seconds:.1f} s: {found}"


class TooManyStates(AssertionError):
    """The bounds of a model are too large to visit every state."""


def explore(model: Model[S], *, states_max: int = 500_000, only: str = "", liveness: bool = True) -> Report:
    """Visit every state of *model*. With *liveness* a goal must stay reachable from each.

    *only* is how the invariants begin that end the run, for models in which others are known to be broken.
    Raises: TooManyStates.
    """
    return _Run(model=model, states_max=states_max, only=only, liveness=liveness).report()


@dataclass(slots=True, kw_only=True)
class _Run(Generic[S]):
    model: Model[S]
    states_max: int
    only: str
    liveness: bool
    number: dict[S, int] = field(default_factory=dict)  #: canonical state -> number, in the order of discovery
    parent: list[int] = field(default_factory=list)
    before: list[list[int]] = field(default_factory=list)  #: numbers of the predecessors
    goals: list[int] = field(default_factory=list)
    witnessed: set[str] = field(default_factory=set)
    actions: set[str] = field(default_factory=set)
    transitions: int = 0

    def report(self) -> Report:
        since = time.process_time()
        violation, trace = self._search()
        depths = self._depths()
        return Report(
            model=self.model.name,
            states=len(self.number),
            transitions=self.transitions,
            depth=max(depths, default=0),
            seconds=time.process_time() - since,
            violation=violation,
            trace=trace,
            witnessed=frozenset(self.witnessed),
            actions=frozenset(self.actions),
        )

    def _search(self) -> tuple[str | None, str]:
        first = self.model.canonical(self.model.first())
        wrong = self._discover(first, parent=-1)
        if wrong:
            return wrong, self._trace(0)
        level = [first]
        while level:
            following: list[S] = []
            for state in level:
                at = self.number[state]
                for step in self._steps(state):
                    wrong = step if isinstance(step, str) else self._take(state, at, step, following)
                    if wrong:
                        last = None if isinstance(step, str) else step
                        return wrong, self._trace(at, last)
            level = following
        stuck = self._stuck() if self.liveness else None
        wrong = self._counts(None if stuck is None else "L: no goal can be reached from here any more")
        return (None, "") if wrong is None or stuck is None else (wrong, self._trace(stuck))

    def _steps(self, state: S) -> Iterator[Step[S] | str]:
        """The steps of *state*; a rule that fails in an unforeseen way is a violation too."""
        try:
            yield from self.model.steps(state)
        except Exception as error:  # reported as a violation with its trace, not swallowed
            yield f"a rule failed: {type(error).__name__}: {error}"

    def _take(self, state: S, at: int, step: Step[S], following: list[S]) -> str | None:
        self.transitions += 1
        self.actions.add(step.what.partition(" ")[0])
        wrong = self._counts(self.model.broke(state, step))
        if wrong:
            return wrong
        then = self.model.canonical(step.then)
        known = self.number.get(then)
        if known is None:
            known = len(self.number)
            wrong = self._discover(then, parent=at)
            if wrong:
                return wrong
            following.append(then)
        self.before[known].append(at)
        return None

    def _discover(self, state: S, *, parent: int) -> str | None:
        if len(self.number) >= self.states_max:
            raise TooManyStates(f"{self.model.name}: more than {self.states_max:,} states")
        self.number[state] = len(self.number)
        self.parent.append(parent)
        self.before.append([])
        if self.model.is_goal(state):
            self.goals.append(self.number[state])
        for name, holds in self.model.witnesses.items():
            if name not in self.witnessed and holds(state):
                self.witnessed.add(name)
        return self._counts(self.model.broken(state))

    def _counts(self, wrong: str | None) -> str | None:
        """*wrong*, if it is one of those that end the run: S2 is not S22."""
        if wrong is None or not wrong.startswith(self.only):
            return None
        return None if self.only and wrong[len(self.only) :][:1].isdigit() else wrong

    def _stuck(self) -> int | None:
        """The first state from which no goal can be reached: backwards from the goals, what was not met."""
        met, queue = bytearray(len(self.number)), list(self.goals)
        for at in queue:
            met[at] = 1
        while queue:
            for earlier in self.before[queue.pop()]:
                if not met[earlier]:
                    met[earlier] = 1
                    queue.append(earlier)
        return next((at for at, seen in enumerate(met) if not seen), None)

    def _depths(self) -> list[int]:
        depths: list[int] = []
        for parent in self.parent:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    def _trace(self, end: int, last: Step[S] | None = None) -> str:
        """The way to state number *end*, taken again from the first state so that each worker keeps its name."""
        path = [end]
        while self.parent[path[-1]] >= 0:
            path.append(self.parent[path[-1]])
        states = list(self.number)
        state, lines = self.model.first(), list[str]()
        for at in reversed(path[:-1]):
            step = next(s for s in self.model.steps(state) if self.model.canonical(s.then) == states[at])
            lines.append(_line(len(lines) + 1, step, self.model))
            state = step.then
        if last is not None:
            # *last* started from the canonical state; the same step of the named one carries the names of this trace.
            wanted = self.model.canonical(last.then)
            step = next((s for s in self.model.steps(state) if self.model.canonical(s.then) == wanted), last)
            lines.append(_line(len(lines) + 1, step, self.model))
        return "\n".join(lines)


def _line(number: int, step: Step[S], model: Model[S]) -> str:
    return f"{number:3}. {step.who:8} {step.what:44} {model.show(step.then)}"
