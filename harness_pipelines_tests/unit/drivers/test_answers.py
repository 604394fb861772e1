"""Answers of a driver that has no time limit are waited for in other threads, which are kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

import pytest

from harness_pipelines.drivers.adbc import AdbcTimeout, within

DEADLINE_S = 20.0


def ask(question: Callable[[], object], limit_s: float = DEADLINE_S) -> object:
    return within(limit_s, question, late=lambda _: None)


def test_the_answer_comes_from_another_thread_and_threads_are_kept():
    seen = {ask(threading.get_ident) for _ in range(200)}
    assert threading.get_ident() not in seen
    # The next question may be asked before the thread of the last one is free again.
    assert len(seen) < 20


@pytest.mark.parametrize("error", [TimeoutError("of the question"), ValueError("no"), SystemExit(3)])
def test_what_the_question_raises_is_raised_and_the_next_one_is_answered(error: BaseException):
    def fails() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        ask(fails)
    assert raised.value is error
    assert ask(lambda: 7) == 7


def test_a_question_that_is_late_keeps_its_thread_and_what_it_gave_is_put_away():
    goes_on, put_away = threading.Event(), SimpleQueue[object]()

    def slow() -> str:
        goes_on.wait(DEADLINE_S)
        return "at last"

    with pytest.raises(AdbcTimeout, match="no answer within 0 s"):
        within(0.01, slow, late=put_away.put)
    assert [ask(threading.get_ident) for _ in range(5)], "others are answered meanwhile"
    goes_on.set()
    assert put_away.get(timeout=DEADLINE_S) == "at last"


def test_of_a_question_that_is_late_and_fails_nothing_is_left():
    goes_on, put_away = threading.Event(), SimpleQueue[object]()

    def slow() -> str:
        goes_on.wait(DEADLINE_S)
        raise OSError("the connection was closed")

    with pytest.raises(AdbcTimeout):
        within(0.01, slow, late=put_away.put)
    goes_on.set()
    assert put_away.get(timeout=DEADLINE_S) is None


def test_many_threads_ask_at_once_and_each_gets_its_answer():
    found: dict[int, list[object]] = {}

    def asks(number: int) -> None:
        found[number] = [ask(partial(pow, number, i)) for i in range(50)]

    threads = [threading.Thread(target=asks, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert found == {number: [number**i for i in range(50)] for number in range(8)}
