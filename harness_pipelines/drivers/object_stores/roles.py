"""Keys that read a few folders for a while: a role of the store, taken on with a policy for these alone (STS).

What such keys may do is what both allow, the role and the policy. So a role that reads the whole warehouse is enough,
and one that may more gives no more away.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from harness_pipelines.drivers.object_stores.clients import SERVICES_OF_S3, bucket_of, token_service
from harness_pipelines.drivers.object_stores.troubles import SHOWN_CHARS_MAX, StoreRefused, is_away, said
from harness_pipelines.errors import TryAgain
from harness_pipelines.extras import needs
from harness_pipelines.spec.object_stores import S3Settings

ROLE = "HARNESS_SERVE_S3_ROLE"
LASTS_MIN, LASTS_MAX = timedelta(minutes=15), timedelta(hours=12)  #: of AWS
SESSION_CHARS_MAX = 64
WILD = re.compile(r"[*?$]")  #: stands for other text in a policy


class RoleRefused(StoreRefused):
    """The store does not give keys by the role of `HARNESS_SERVE_S3_ROLE`; engines got none, and never the server's."""

    way_on = f"correct what the message names; without {ROLE} engines bring their own keys"


class RoleAway(TryAgain):
    """What gives keys by a role (the STS of the store) does not answer, or asks to be asked less."""

    way_on = "nothing: the next load of a table asks again"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingKeys:
    """Keys of a session. They are shown in no log."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str = field(repr=False)
    until: datetime


#: The code of an answer, or how the SDK words it, and what to do.
_REFUSALS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"DurationSeconds|MaxSessionDuration"),
     "the role does not last so long: raise its maximum session duration, or lower --keep (a quarter of it)"),
    (re.compile(r"PackedPolicyTooLarge|policy.{0,40}2048"),
     "the names of the folders are too long for a policy: take a warehouse with a shorter prefix"),
    (re.compile(r"AccessDenied|not authorized", re.IGNORECASE),
     "the server's login may not take on the role: allow it sts:AssumeRole, and name it in the role's trust policy"),
    (re.compile(r"InvalidClientTokenId|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|Unable to locate cred"),
     "the server's own keys are not taken: check HARNESS_S3_ACCESS_KEY and HARNESS_S3_SECRET_KEY, or its role"),
    (re.compile(r"RegionDisabled|must specify a region"), "set HARNESS_S3_REGION to a region where STS is enabled"),
    (re.compile(r"RoleArn", re.IGNORECASE),
     f"{ROLE} is no name of a role: write arn:aws:iam::ACCOUNT:role/NAME, or what the store calls it"),
    (re.compile(r"InvalidAction|MethodNotAllowed|NotImplemented|Unable to parse response|invalid XML|HTTP 40[45]"),
     f"the endpoint gives no keys by roles: unset {ROLE}, and hand out keys that may only read "
     "(HARNESS_SERVE_S3_ACCESS_KEY, HARNESS_SERVE_S3_SECRET_KEY)"),
)  # fmt: skip
_THROTTLED = re.compile(r"Throttl|RequestLimitExceeded|TooManyRequests")


def policy(role: str, folders: Sequence[str], *, decrypts: bool = False) -> str:
    """The policy by which a session reads the files below *folders* (``s3://bucket/key``), lists them, and no more.

    *decrypts*: it may decrypt what S3 reads for it, by the KMS keys that the role may use.
    """
    partition = role.split(":")[1] if role.startswith("arn:") and role.count(":") >= 5 else "aws"
    keys: dict[str, list[str]] = {}
    for folder in sorted(set(folders)):
        bucket, key = bucket_of(folder.rstrip("/"))
        keys.setdefault(bucket, []).append(f"{key}/*")
    files = [f"arn:{partition}:s3:::{bucket}/{key}" for bucket, found in keys.items() for key in found]
    statements: list[object] = [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": files}]
    for bucket, found in keys.items():
        condition = {"StringLike": {"s3:prefix": found}}
        of = f"arn:{partition}:s3:::{bucket}"
        statements.append({"Effect": "Allow", "Action": "s3:ListBucket", "Resource": of, "Condition": condition})
    if decrypts:
        by_s3 = {"StringLike": {"kms:ViaService": SERVICES_OF_S3}}
        statements.append({"Effect": "Allow", "Action": "kms:Decrypt", "Resource": "*", "Condition": by_s3})
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))


def assume(role: str, folders: Sequence[str], s3: S3Settings, *, name: str, lasts: timedelta) -> ReadingKeys:
    """Keys that read *folders* for *lasts*. The store's own log shows the session by *name*.

    Raises: ExtraMissing, RoleRefused, RoleAway.
    """
    with needs("s3", ROLE):
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

    asked = (
        f"{ROLE}: keys to read {', '.join(folders)} for {lasts.total_seconds():g} s by the role {role} of "
        f"{s3.endpoint or 'AWS'}"
    )
    try:
        answer = token_service(folders[0], s3).assume_role(
            RoleArn=role,
            RoleSessionName=re.sub(r"[^\w+=,.@-]", "-", f"harness-{name}")[:SESSION_CHARS_MAX],
            DurationSeconds=int(lasts.total_seconds()),
            Policy=policy(role, folders, decrypts=s3.endpoint is None),  # other stores may not know the word
        )
    except (BotoCoreError, ClientError, ResponseParserError) as error:
        raise _named(asked, error) from error
    found = answer["Credentials"]
    keys = ReadingKeys(
        access_key=found["AccessKeyId"],
        secret_key=found["SecretAccessKey"],
        session_token=found.get("SessionToken") or "",
        until=found["Expiration"].astimezone(UTC),
    )
    if not keys.session_token or keys.access_key == s3.access_key:
        raise RoleRefused(f"{asked} are none of a session; no engine got them. Hand out keys that may only read")
    return keys


def _named(asked: str, error: Exception) -> RoleRefused | RoleAway:
    from botocore.exceptions import ConnectionError as NoConnection
    from botocore.exceptions import CredentialRetrievalError, HTTPClientError

    text = said(error)
    passes = isinstance(error, (NoConnection, HTTPClientError, CredentialRetrievalError))
    if passes or is_away(text) or _THROTTLED.search(text):
        return RoleAway(f"{asked}: it does not answer now ({text[:SHOWN_CHARS_MAX]})")
    way_on = next((way for pattern, way in _REFUSALS if pattern.search(text)), "the answer says why")
    return RoleRefused(f"{asked} are refused: {way_on} ({text[:SHOWN_CHARS_MAX]})")
