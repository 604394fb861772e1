"""AWS Glue for tests, by moto: entries of tables, and what a client that knows nothing of the harness makes of them.

moto takes an update of any version of an entry. Glue itself refuses one that is not of the newest, which every engine
relies on, so that is added here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from moto.core.exceptions import JsonRESTError
from moto.glue.responses import GlueResponse
from moto.server import ThreadedMotoServer
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.table import Table

REGION = "eu-central-1"
LOGIN = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}  # moto takes any


class GlueServer:
    """One server that answers on loopback."""

    def __init__(self, uri: str) -> None:
        self.uri, self.refused = uri, 0  #: how many updates were of an entry that had changed
        self.before_update: Callable[[], object] | None = None  #: done once, between a client's look and its update
        self.catalog = GlueCatalog(
            "other", **{"glue.endpoint": uri, "glue.region": REGION, "s3.region": REGION}, **_login()
        )

    def table(self, identifier: str) -> Table:
        return self.catalog.load_table(identifier)

    def entry(self, identifier: str) -> dict[str, Any]:
        database, _, name = identifier.partition(".")
        found: dict[str, Any] = self.catalog.glue.get_table(DatabaseName=database, Name=name)["Table"]
        return found

    def touch(self, identifier: str) -> None:
        """Write the entry as it is: only its number changes."""
        known = ("Name", "TableType", "Parameters", "StorageDescriptor")
        database, _, _ = identifier.partition(".")
        entry: Any = {name: value for name, value in self.entry(identifier).items() if name in known}
        self.catalog.glue.update_table(DatabaseName=database, TableInput=entry)


@contextmanager
def glue() -> Iterator[GlueServer]:
    """Run one; its state is gone at the end."""
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    server = GlueServer(f"http://{host}:{port}")
    by_moto = GlueResponse.update_table

    def update_table(asked: GlueResponse) -> Any:
        if (before := server.before_update) is not None:
            server.before_update = None
            before()
        number, name = asked.parameters.get("VersionId"), asked.parameters["TableInput"]["Name"]
        there = asked.glue_backend.get_table(asked.parameters["DatabaseName"], name)
        if number is not None and number != there.as_dict()["VersionId"]:
            server.refused += 1
            raise JsonRESTError("ConcurrentModificationException", f"{name} is not at version {number}")
        return by_moto(asked)

    try:
        with mock.patch.object(GlueResponse, "update_table", update_table):
            yield server
    finally:
        moto.stop()


def _login() -> dict[str, str]:
    return {
        f"{of}.{word}": LOGIN[name]
        for of in ("glue", "s3")
        for word, name in (("access-key-id", "AWS_ACCESS_KEY_ID"), ("secret-access-key", "AWS_SECRET_ACCESS_KEY"))
    }
