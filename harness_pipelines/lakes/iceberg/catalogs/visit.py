"""A catalog of Iceberg's REST protocol as an engine reads from it: by PyIceberg, which knows nothing of the harness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import requests
from pyiceberg.exceptions import (
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from pyiceberg.table import Table

from harness_pipelines.lakes.iceberg.private.rest import RestClient

WAIT_S = (5.0, 60.0)  #: to connect, and between two packets: the server may wait for another load of the table
_AWAY = (requests.RequestException, ServiceUnavailableError, TooManyRequestsError)
#: Answers that are no table; what is not of the protocol's form is a ValueError.
_REFUSED = (RESTError, NoSuchTableError, NoSuchNamespaceError, ValueError)


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table as the catalog answered; its rows are of that moment whenever they are read."""

    _table: Table

    @property
    def summary(self) -> Mapping[str, str]:
        """Of its snapshot."""
        snapshot = self._table.current_snapshot()
        found = snapshot.summary if snapshot else None
        return {} if found is None else found.additional_properties

    def rows(self, columns: Sequence[str]) -> pa.Table:
        """Raises: what the access to its files raises."""
        return self._table.scan(selected_fields=tuple(columns)).to_arrow()


class Visitor:
    """Loads tables from the catalog at *url* with a token."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token
        self._client: RestClient | None = None  #: once the catalog has answered what it offers

    def load(self, name: str) -> LoadedTable:
        """Raises: ConnectionError where the catalog is away or asks to come again; LookupError for another answer."""
        try:
            if self._client is None:
                self._client = RestClient("visited", wait_s=WAIT_S, uri=self._url, token=self._token)
            return LoadedTable(self._client.load_table(name))
        except _AWAY as error:
            raise ConnectionError(f"{self._url}: {error}") from error
        except _REFUSED as error:
            raise LookupError(f"{self._url}: {name}: {type(error).__name__}: {error}") from error
