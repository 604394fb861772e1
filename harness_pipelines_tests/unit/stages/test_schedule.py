"""Which unit a free thread takes, and that each is taken in the end."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.stages.run.schedule import JOINED_MAX, LATE_TIMES, LONG_MAX, LONG_S, Room, Schedule, Turn

OBJECTIVES_S, RUNS_S = [1.0, 2.0, 4.0], [1.0, 2.0, 5.0]


def turn(name: str = "a", *, room: Room = Room.LAKE, objective_s: float = 1.0) -> Turn:
    return Turn("a.b", name, room, objective_s)


def schedule(places: int = 1) -> Schedule:
    return Schedule(dict.fromkeys(Room, places))


def test_what_is_furthest_behind_its_objective_is_taken_first():
    slow, fast, later = turn(objective_s=60.0), turn(objective_s=1.0), turn(objective_s=1.0)
    found = schedule(3)
    found.ask(slow, 0.0)
    found.ask(fast, 5.0)
    found.ask(later, 20.0)
    assert [found.take(10.0), found.take(10.0), found.take(10.0)] == [fast, slow, None]
    assert found.next_at(10.0) == 20.0


def test_a_room_that_is_full_holds_up_no_other_one():
    first, second, other = turn(), turn(), turn(room=Room.LOG)
    found = schedule(1)
    for one in (first, second, other):
        found.ask(one, 0.0)
    taken = [found.take(1.0), found.take(1.0), found.take(1.0)]
    assert set(taken) == {first, other, None} or set(taken) == {second, other, None}


def test_a_unit_that_runs_for_long_gives_its_place_up_and_is_named():
    hanging, waiting = turn("hanging"), turn("waiting")
    found = schedule(1)
    found.ask(hanging, 0.0)
    assert found.take(0.0) is hanging
    found.ask(waiting, 1.0)
    assert found.take(1.0) is None
    assert found.next_at(1.0) == LONG_S
    assert found.late(4.0) == {waiting: 4.0 - 1.0 - LATE_TIMES}
    assert found.take(LONG_S) is waiting
    assert found.long(LONG_S) == {hanging: LONG_S}


def test_no_more_than_a_bound_of_units_gives_up_places():
    found = schedule(1)
    taken = []
    for number in range(LONG_MAX + 5):
        found.ask(turn(str(number)), 0.0)
    for round_ in range(LONG_MAX + 5):
        taken.append(found.take(round_ * LONG_S))
    assert sum(one is not None for one in taken) == LONG_MAX + 1


def test_what_was_asked_for_while_it_ran_runs_again():
    one = turn()
    found = schedule()
    found.ask(one, 0.0)
    assert found.take(0.0) is one
    found.ask(one, 1.0)
    found.done(one, inf)
    assert found.take(1.0) is one
    found.done(one, 7.0)
    assert found.take(6.9) is None
    assert found.take(7.0) is one


def test_what_is_dropped_is_not_taken():
    one, other = turn(), turn()
    found = schedule(2)
    found.ask(one, 0.0)
    found.ask(other, 5.0)
    assert found.next_at(1.0) == 1.0
    found.drop(one)
    found.drop(other)
    assert found.take(9.0) is None
    assert found.next_at(9.0) == inf


def test_an_earlier_moment_counts():
    one = turn()
    found = schedule()
    found.ask(one, 60.0)
    found.ask(one, 2.0)
    found.ask(one, 30.0)
    assert found.take(2.0) is one
    found.done(one, inf)
    assert found.take(100.0) is None, "the other moments were for the same work"


def joining(name: str, *, room: Room = Room.LOG) -> Turn:
    made = turn(name, room=room)
    made.joins = True
    return made


def test_turns_that_join_are_taken_with_one_that_has_a_place():
    first, second, later, other = joining("1"), joining("2"), joining("3"), joining("4", room=Room.LAKE)
    aloof = turn("5", room=Room.LOG)
    found = schedule(1)
    for at, one in enumerate((first, second, aloof, other)):
        found.ask(one, at / 10)
    found.ask(later, 50.0)
    assert found.take(10.0) is first
    assert found.join(first, 10.0) == [second]
    assert found.take(10.0) is other
    assert found.join(other, 10.0) == []
    assert found.take(10.0) is None, "the one place of the log is taken"
    for one in (first, second):
        found.done(one, inf)
    assert found.take(10.0) is aloof
    assert found.join(aloof, 50.0) == []


def test_no_more_than_a_bound_of_turns_join_and_the_others_find_another_place():
    turns = [joining(str(number)) for number in range(2 * JOINED_MAX)]
    found = schedule(2)
    for one in turns:
        found.ask(one, 0.0)
    groups = []
    for _ in range(2):
        taken = found.take(1.0)
        assert taken is not None
        groups.append([taken, *found.join(taken, 1.0)])
    assert [len(group) for group in groups] == [JOINED_MAX + 1, JOINED_MAX - 1]
    assert len({one for group in groups for one in group}) == len(turns)
    assert found.take(1.0) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(OBJECTIVES_S), st.sampled_from(list(Room)), st.sampled_from(RUNS_S)),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 3),
)
def test_each_unit_gets_its_turn_and_never_two_threads(units: list[tuple[float, Room, float]], places: int):
    """All of them always have work: one waits for its share, which its objective and those of the others give."""
    found = schedule(places)
    runs_s = {
        Turn("a.b", str(number), room, objective_s): run_s for number, (objective_s, room, run_s) in enumerate(units)
    }
    for one in runs_s:
        found.ask(one, 0.0)
    ends: list[tuple[float, Turn]] = []
    unseen, now = set(runs_s), 0.0
    while unseen:
        assert now <= 2 * OBJECTIVES_S[-1] / OBJECTIVES_S[0] * len(units) * RUNS_S[-1], "it starves"
        while (taken := found.take(now)) is not None:
            assert taken not in [one for _, one in ends], "it runs already"
            ends.append((now + runs_s[taken], taken))
            unseen.discard(taken)
        ends.sort(key=lambda end: end[0])
        now, over = ends.pop(0)
        found.done(over, now)
