"""A server that takes connections and says nothing is named, whichever it is, in time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness_pipelines.app.health import Health
from harness_pipelines.app.probes import probes
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.promise import within

NOBODY = "127.0.0.1:9"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that is stopped: its kernel takes what it is sent."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def all_at(place: str) -> Settings:
    return Settings(
        home=Path("/none"),
        dsn=f"postgresql://me:hunter2@{place}/d",
        kafka=place,
        spark=f"sc://{place}/;token=hunter2",
        registry=f"http://me:hunter2@{place}",
    )


@pytest.mark.parametrize("how", ["hangs", "is away"])
def test_each_server_that_does_not_answer_is_named_in_time(silent: str, how: str):
    with within(8, "a look at all servers"):
        found = Health(all_at(silent if how == "hangs" else NOBODY)).look()
    assert found.keys() == {"postgres", "kafka", "spark", "registry"}
    assert [name for name, why in found.items() if not why] == []
    assert [name for name, why in found.items() if "hunter2" in str(why)] == []


def test_only_what_the_settings_name_is_asked():
    assert probes(Settings(home=Path("/none"))) == {}
    assert probes(replace(Settings(home=Path("/none")), spark="local[2]")) == {}


def test_a_question_that_is_out_is_not_asked_a_second_time():
    asked, over = [], threading.Event()

    def ask() -> None:
        asked.append(1)
        over.wait(30)

    health = Health(Settings(home=Path("/none")), wait_s=0.02, asks={"spark": ask})
    assert health.look() == {"spark": "no answer within 0 s"}
    wait_until(lambda: bool(asked), "its thread asks")
    assert health.look() == {"spark": "no answer within 0 s"}
    assert len(asked) == 1
    over.set()
