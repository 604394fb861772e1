"""PyIceberg's client of REST catalogs, and what it keeps to itself.

It loads an HTTP client, which readers of the lake do not need, so no other module of this folder does.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus

import requests
from pyiceberg.catalog.rest import DEFAULT_ENDPOINTS, RestCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ForbiddenError, RESTError

_NOT_OFFERED = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)


def is_of_catalog(error: Exception) -> bool:
    """Whether an error is the catalog's own word; a gateway on the way has pages for what it knows no way to."""
    answer = getattr(error.__cause__, "response", None)
    if answer is None:
        return True
    try:
        return "error" in answer.json()
    except (ValueError, TypeError):
        return False


class RestClient(RestCatalog):
    """A request ends after *wait_s*: to connect, and between two packets."""

    def __init__(self, name: str, *, wait_s: tuple[float, float], **properties: str) -> None:
        self._wait_s = wait_s
        super().__init__(name, **properties)

    def _create_session(self) -> requests.Session:
        session = super()._create_session()
        session.request = partial(session.request, timeout=self._wait_s)  # type: ignore[method-assign]
        return session

    def offers(self, request: str) -> bool:
        """Whether the server may take *request*, a path.

        A server that names no requests takes all of the protocol's first version, and so this one.
        """
        named = self._supported_endpoints
        return named >= DEFAULT_ENDPOINTS or any(str(one).endswith(f"/{request}") for one in named)

    def post(self, endpoint: str, body: str) -> bool:
        """Send a commit; False: the server has no such request. Raises: what PyIceberg raises for a commit."""
        answer = self._session.post(self.url(endpoint), data=body.encode())
        if answer.status_code in _NOT_OFFERED and "NoSuch" not in answer.text:  # as of a table or a namespace
            return False
        if answer.status_code == HTTPStatus.CONFLICT:
            raise CommitFailedException(answer.text)
        if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise CommitStateUnknownException(answer.text)
        if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise ForbiddenError(answer.text)
        if answer.status_code >= HTTPStatus.MULTIPLE_CHOICES:
            raise RESTError(answer.text)
        return True
