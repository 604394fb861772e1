"""The picture of a layout is that of the version and of the spec that the page shows."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.serve.page import picture
from harness_pipelines.serve.page.picture import Pictures
from harness_pipelines_tests.producer import wait_until


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pictures]:
    """A head of version 9 was published since the page looked."""

    def look(_stores: Any, table: Any, *, at: int | None = None, history_max: int) -> dict[str, Any]:
        assert history_max == 1
        return {"version": at or 9, "target": table.target}

    monkeypatch.setattr(picture, "look", look)
    monkeypatch.setattr(picture, "picture", dict)
    monkeypatch.setattr(picture, "AGAIN_S", 0.0)
    made = Pictures(SimpleNamespace())  # type: ignore[arg-type]
    yield made
    made.close()


def table(target: int) -> Any:
    return SimpleNamespace(table_id=1, name="a.b", spec_hash=target, target=target)


def head(version: int, metadata: str) -> Any:
    return SimpleNamespace(version=version, batch=SimpleNamespace(metadata=metadata), layout=None)


def test_a_picture_is_of_the_version_that_it_was_asked_for(pictures: Pictures):
    wait_until(lambda: pictures.of(table(1), head(4, "m4")).get("version") is not None, "it is drawn")
    assert pictures.of(table(1), head(4, "m4"))["version"] == 4, "else a revert to it would show what was reverted"


def test_another_target_of_the_spec_is_another_picture(pictures: Pictures):
    wait_until(lambda: pictures.of(table(1), head(4, "m4")).get("target") == 1, "it is drawn")
    wait_until(lambda: pictures.of(table(2), head(4, "m4")).get("target") == 2, "it is drawn again")
