"""Tokens for clients that know only OAuth 2: `client_credentials` with the name of a token and the token itself.

What a client gets is the token that it has: there is nothing more to know. So its life is not in the answer: a client
that sees it end would ask for another one in exchange, and there is none. Errors have the form of RFC 6749, 5.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from harness_pipelines.serve.answers import NOT_STORED, Refused, answer, shown
from harness_pipelines.serve.auth import basic
from harness_pipelines.serve.logins import Logins
from harness_pipelines.serve.requests import body_of, form_of
from harness_pipelines.serve.strangers import Strangers

FORM_BYTES_MAX = 64 * 1024
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"


async def token(request: Request, logins: Logins, strangers: Strangers) -> Response:
    """Answer ``POST /v1/oauth/tokens``. Raises: TryAgain."""
    try:
        form = form_of(await body_of(request, most=FORM_BYTES_MAX))
    except Refused as wrong:
        return _error(wrong.status, "invalid_request", wrong.message)
    grant = form.get("grant_type")
    if grant == EXCHANGE:
        return _error(400, "unsupported_grant_type", "tokens are not exchanged: a token is good until it expires")
    if grant != "client_credentials":
        said = "grant_type is missing" if grant is None else f"grant_type {shown(grant)!r} is not offered"
        kind = "invalid_request" if grant is None else "unsupported_grant_type"
        return _error(400, kind, f"{said}: use client_credentials")
    login = basic(request.headers.get("authorization"))
    name, secret = login or (form.get("client_id", ""), form.get("client_secret", ""))
    if not secret:
        return _error(400, "invalid_request", "client_secret is missing: it is a token of `harness serve token create`")
    found = await logins.holder(secret)
    # Some clients have a secret without an id. The secret alone decides; a wrong id is a mistake worth an error.
    if found is None or (name and name != found.name):
        strangers.came(request, why="a client's secret that is wrong, expired or revoked")
        challenge = {"www-authenticate": 'Basic realm="harness"'}
        return _error(401, "invalid_client", "no token has this name and secret, or it has expired", challenge)
    content = {"access_token": secret, "token_type": "bearer", "issued_token_type": ACCESS_TOKEN}
    return answer(content, headers=NOT_STORED)


def _error(status: int, kind: str, description: str, headers: Mapping[str, str] | None = None) -> Response:
    content = {"error": kind, "error_description": description}
    return answer(content, status, {**NOT_STORED, **(headers or {})})
