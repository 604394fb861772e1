"""The reach that is kept by differences is that of each version's own metadata, whatever the history."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.protocol.lake.reach import Kind, Main, Newest, Span, is_reached


@dataclass(slots=True)
class Ledger:
    """The spans as the ledger keeps them, and what it was asked to read."""

    spans: list[Span]
    opened: list[str]

    def newest(self) -> Newest:
        """What is read back of them."""
        going = [span for span in self.spans if span.last is None]
        alone: dict[str, Kind] = {span.path: span.kind for span in going if span.kind in ("metadata", "list")}
        through = max((span.first for span in going if span.kind == "metadata"), default=-1)
        manifests: dict[str, Collection[str]] = {
            span.path: FILES[span.path] for span in going if span.kind == "manifest"
        }
        return Newest(through=through, alone=alone, manifests=manifests)

    def write(self, newest: Newest) -> None:
        for path, last in newest.ended.items():
            [going] = [span for span in self.spans if span.path == path and span.last is None]
            self.spans.remove(going)
            self.spans.append(Span(path=path, kind=going.kind, first=going.first, last=last))
        self.spans += newest.spans()
        newest.written()

    def reached(self, *, retained_from: int, pinned: Sequence[int]) -> set[str]:
        return {
            span.path
            for span in self.spans
            if is_reached(span.first, span.last, retained_from=retained_from, pinned=pinned)
        }


#: A manifest never changes, whoever names it; a file that is compacted with others is in no later one.
FILES: Mapping[str, Sequence[str]] = {
    **{f"m{n}": [f"f{n}"] for n in range(4)},
    "m01": ["f0", "f1"],
    "m12": ["f1", "f2"],
    "m0123": ["f0", "f1", "f2", "f3"],
    "compacted": ["c"],
    "c3": ["c", "f3"],
    "deletes": ["d"],
}


def main(version: int, state: tuple[int, frozenset[str]], known: Mapping[str, object], opened: list[str]) -> Main:
    """As `ViewMetadata.main` answers: a state that comes again has its list of then."""
    number, manifests = state
    opened += sorted(manifests - set(known))
    named = {path: None if path in known else FILES[path] for path in sorted(manifests)}
    return Main(metadata=f"v{version}.json", manifest_list=f"l{number}" if manifests else None, manifests=named)


def files_of(version: int, state: tuple[int, frozenset[str]]) -> set[str]:
    return {path for path, _ in main(version, state, {}, []).paths()}


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, frozenset[str]]]:
    """The manifests of each version from 1 on, with the number of its list: a revert has both of an older one."""
    made: list[tuple[int, frozenset[str]]] = []
    for number in range(1, draw(st.integers(1, 10)) + 1):
        if made and draw(st.integers(0, 3)) == 0:
            made.append(draw(st.sampled_from(made)))
        else:
            made.append((number, frozenset(draw(st.sets(st.sampled_from(sorted(FILES)), max_size=4)))))
    return made


@given(histories(), st.data())
def test_the_kept_reach_is_that_of_the_versions_in_reach(history, data):
    """Versions are read in parts, and some never: they were out of reach before somebody read them."""
    ledger, read = Ledger(spans=[], opened=[]), list[int]()
    waiting = list(enumerate(history, start=1))
    while waiting:
        newest = ledger.newest()
        for _ in range(data.draw(st.integers(1, len(waiting)))):
            version, state = waiting.pop(0)
            if read and waiting and data.draw(st.integers(0, 5)) == 0:
                continue
            newest.follow(version, main(version, state, newest.manifests, ledger.opened))
            read.append(version)
        ledger.write(newest)
    retained_from = data.draw(st.sampled_from(read))
    pinned = data.draw(st.lists(st.sampled_from(read)))

    found = ledger.reached(retained_from=retained_from, pinned=pinned)

    in_reach = [version for version in read if version >= retained_from or version in pinned]
    assert found == set().union(*(files_of(version, history[version - 1]) for version in in_reach))


@given(histories())
def test_a_file_has_one_span_for_each_run_of_versions_that_reach_it(history):
    newest, ledger = Newest(), Ledger(spans=[], opened=[])
    for version, state in enumerate(history, start=1):
        newest.follow(version, main(version, state, newest.manifests, ledger.opened))
    ledger.write(newest)

    for path in {span.path for span in ledger.spans}:
        spans = sorted((s.first, len(history) if s.last is None else s.last) for s in ledger.spans if s.path == path)
        held = {version for first, last in spans for version in range(first, last + 1)}
        assert held == {v for v, state in enumerate(history, start=1) if path in files_of(v, state)}
        assert all(last + 1 < first for (_, last), (first, _) in pairwise(spans))


@given(histories())
def test_no_manifest_is_opened_while_it_is_known(history):
    newest, opened = Newest(), list[str]()
    for version, state in enumerate(history, start=1):
        before = len(opened)
        newest.follow(version, main(version, state, newest.manifests, opened))
        earlier = history[version - 2][1] if version > 1 else frozenset()
        assert set(opened[before:]) == state[1] - earlier


def test_what_goes_on_is_written_back_as_it_was_read():
    ledger = Ledger(spans=[], opened=[])
    for version, manifests in ((1, {"m0", "m1"}), (2, {"m01"})):
        newest = ledger.newest()
        newest.follow(version, main(version, (version, frozenset(manifests)), newest.manifests, ledger.opened))
        ledger.write(newest)

    assert {(s.path, s.first, s.last) for s in ledger.spans if s.kind == "file"} == {("f0", 1, None), ("f1", 1, None)}
    assert {(s.path, s.first, s.last) for s in ledger.spans if s.kind == "manifest"} == {
        ("m0", 1, 1),
        ("m1", 1, 1),
        ("m01", 2, None),
    }


def test_a_manifest_that_is_neither_known_nor_read_is_a_defect():
    with pytest.raises(AssertionError, match="m1 is not known"):
        Newest().follow(1, Main(metadata="v1.json", manifest_list="l1", manifests={"m1": None}))
