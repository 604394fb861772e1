"""A running `harness serve`, and how a client logs in."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog

import harness_pipelines as hp
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.other_catalog import pyiceberg_options
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Where it listens, and a token for it."""

    url: str
    flight: str | None
    token: str
    settings: Settings

    def catalog(self, **more: str) -> Any:
        warehouse = self.settings.warehouse or ""
        return load_catalog("h", type="rest", uri=self.url, token=self.token, **pyiceberg_options(warehouse), **more)


def token_for(harness: hp.Harness, globs: Sequence[str] = ("*",)) -> str:
    return harness.stores.tokens.create(f"t-{uuid.uuid4().hex[:10]}", globs, lasts=None).secret


@contextmanager
def serving(harness: hp.Harness, folder: Path, *options: str) -> Iterator[Served]:
    """A server that ends in order, with code 0, after the block."""
    file, token = folder / "serve.json", token_for(harness)
    with Command(harness.settings, "serve", "--port", "0", "--json", str(file), *options) as command:
        wait_until(lambda: file.exists() and file.read_bytes().endswith(b"}\n"), "the server has started")
        started = json.loads(file.read_text())
        yield Served(url=started["url"], flight=started["flight"], token=token, settings=harness.settings)
        command.send(signal.SIGTERM)
        code, said = command.await_end()
        assert code == 0, said
