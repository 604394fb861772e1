"""A promise in seconds is judged as it is on an idle machine, and by the load on a busy one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from harness_pipelines_tests import promise
from harness_pipelines_tests.promise import Load, within


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a block takes: the clock reads 0 and then the last of them."""
    took_s = [0.0]
    monkeypatch.setattr(promise, "time", SimpleNamespace(monotonic=lambda: took_s[-1]))
    return took_s


def busy(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    """Let a burst take *times* as long by the clock as on a processor."""
    monkeypatch.setattr(promise, "burst", lambda: (times * 0.04, 0.04))


@pytest.mark.parametrize(("times", "kept_s", "broken_s"), [(0.9, 9.9, 10.1), (1.0, 9.9, 10.1), (3.0, 29.9, 30.1)])
def test_a_promise_is_stretched_by_the_load_and_by_nothing_else(
    passes: list[float], monkeypatch: pytest.MonkeyPatch, times: float, kept_s: float, broken_s: float
):
    busy(monkeypatch, times)
    with within(10, "the end"):
        passes.append(kept_s)
    passes.append(0.0)
    with pytest.raises(AssertionError, match="the end took .* s of 10 s"), within(10, "the end"):
        passes.append(broken_s)


def test_what_a_block_raises_is_raised_whatever_it_took(passes: list[float], monkeypatch: pytest.MonkeyPatch):
    busy(monkeypatch, 1.0)
    with pytest.raises(KeyError), within(10, "the end"):
        passes.append(11.0)
        raise KeyError


def test_load_is_what_the_bursts_took_together(monkeypatch: pytest.MonkeyPatch):
    busy(monkeypatch, 1.0)
    load = Load()
    busy(monkeypatch, 5.0)
    load.note()
    assert load.stretch == pytest.approx(3.0)


def test_a_burst_takes_time_on_a_processor():
    clock_s, worked_s = promise.burst()
    assert worked_s > 0
    assert clock_s > 0
