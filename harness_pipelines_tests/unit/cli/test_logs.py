"""Log lines of the command line."""

from __future__ import annotations

import logging

import pytest
import structlog

from harness_pipelines.cli.common import duration
from harness_pipelines.show.logs import configure_logging
from harness_pipelines.show.progress import Rates


@pytest.fixture(autouse=True)
def _as_before():
    yield
    structlog.reset_defaults()


def test_an_event_is_one_plain_line_on_standard_error_without_secrets(capsys):
    configure_logging(logging.INFO)

    structlog.get_logger("x").info("tier.published", table="shop.o", error="no postgresql://me:hunter2@h/d now", rows=3)

    out, err = capsys.readouterr()
    assert out == ""
    assert err.split(" ", 1)[1] == 'info    tier.published table=shop.o error="no postgresql://me:***@h/d now" rows=3\n'


def test_events_below_the_level_are_not_shown(capsys):
    configure_logging()

    structlog.get_logger("x").info("claim.taken")

    assert capsys.readouterr().err == ""


def test_the_rate_is_that_of_the_last_seconds():
    rates = Rates(over_s=2.0)

    found = [rates.note("t", rows, now=float(second)) for second, rows in enumerate([0, 100, 200, 1200, 2200])]

    assert found[:2] == [0.0, 100.0]
    assert found[-1] == pytest.approx(1000.0)


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60), ("1.5h", 5400), ("250ms", 0.25), ("10", 10), ("2m", 120), ("7d", 604_800)]
)
def test_durations_are_read_with_their_unit(text, seconds):
    assert duration(None, None, text) == seconds  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["0s", "-1s", "x", "", "nan", "5w"])
def test_what_is_no_duration_is_refused(text):
    import click

    with pytest.raises(click.BadParameter, match="is not a duration"):
        duration(None, None, text)  # type: ignore[arg-type]
