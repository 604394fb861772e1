"""Errors of object stores by name: what ends by itself, and what a person has to correct.

Each client words them otherwise: Arrow by numbers of the AWS SDK, obstore by the store's own XML, Spark by Java's
classes. All of them quote the store's code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.secret import redact

SHOWN_CHARS_MAX = 400
NO_STORE = "the endpoint answers, but is no object store (HTML)"
#: How clients say that an answer with status 200 is none of S3's.
_NO_ANSWER = re.compile(
    r"XML_ERROR_|ETag Header missing|Got invalid (?:\w+ )?(?:response|DeleteObjects|ListObjects)|"
    r"Unable to parse response .*invalid XML"
)


class StoreRefused(HarnessError):
    """The object store answered, and refuses: trying again does not help."""

    recovery = Recovery.NEVER
    way_on = "correct what the message names, then start the worker again"


#: The store's code, or how a client says it, and what to do.
_REFUSALS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"NoSuchBucket|no such bucket|bucket does not exist", re.IGNORECASE),
     "there is no such bucket: make it, or correct HARNESS_WAREHOUSE"),
    (re.compile(r"ExpiredToken|token has expired|TokenRefreshRequired", re.IGNORECASE),
     "the credentials have expired: renew HARNESS_S3_SESSION_TOKEN with its keys, or use a role"),
    (re.compile(r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken\b|INVALID_ACCESS_KEY|INVALID_SIGNATURE"),
     "the store does not know these credentials: check HARNESS_S3_ACCESS_KEY and HARNESS_S3_SECRET_KEY (or the role)"),
    (re.compile(r"PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint|wrong region|"
                r"301 Moved|HTTP response code 301|incorrectly configured region", re.IGNORECASE),
     "the bucket is in another region: set HARNESS_S3_REGION"),
    # Status 403 with another code comes before the rights.
    (re.compile(r"RequestTimeTooSkewed|REQUEST_TIME_TOO_SKEWED|RequestExpired|REQUEST_EXPIRED"),
     "this machine's clock is off: set it"),
    (re.compile(r"InvalidObjectState|INVALID_OBJECT_STATE"),
     "the file was moved to an archive: restore it, and end the lifecycle rule that moves files of the warehouse"),
    (re.compile(r"KMS\.\w+Exception"),
     "the KMS key that the bucket encrypts with is disabled, deleted or unknown: enable it, or set another one"),
    (re.compile(r"with Object Lock parameters"),  # it asks for a checksum then, which not all clients send
     "the bucket locks each file that is written (Object Lock with a default retention): end that, or take another "
     "bucket; files of the warehouse have to be deleted"),
    (re.compile(r"AccessDenied|ACCESS_DENIED|Access Denied|status(?: code)?:? 403|403 Forbidden", re.IGNORECASE),
     "these credentials may not do that: grant the rights that docs/how-to/object-stores.md lists"),
    (re.compile(r"HTTP status 400\) during Head|performing HEAD .* 400 Bad Request"),  # whose answer has no body
     "the store refuses the request: the credentials have expired, or the bucket is in another region"),
)  # fmt: skip
#: In the words of clients when the store is away, or asks to be asked less.
OUTAGES = (
    "SlowDown",
    "SLOW_DOWN",
    "Please reduce your request rate",
    "ServiceUnavailable",
    "Service Unavailable",
    "status code: 503",
    "Status Code: 503",
    "Status Code: 500",
    "InternalError",
    "RequestTimeout",
    "SdkClientException",
    "Unable to execute HTTP request",
)


def refusal(text: str) -> str | None:
    """What to do about an error of the store that only a person can end; None: it is no such."""
    return next((way_on for pattern, way_on in _REFUSALS if pattern.search(text)), None)


def is_away(text: str) -> bool:
    """Return whether an error of the store ends by itself: it is away, or asks to be asked less."""
    return any(word in text for word in OUTAGES)


@contextmanager
def store_errors(location: str) -> Iterator[None]:
    """Errors of obstore by name. Raises: StoreRefused; OSError for all that may end by itself."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError) as error:
        told = named(location, error)
        if isinstance(error, OSError) and not isinstance(told, StoreRefused):
            raise
        raise told from error


def said(error: Exception) -> str:
    """What a store's client says, in one line; where it could read no answer, what that means is before it."""
    text = redact(" ".join(str(error).split()))
    return f"{NO_STORE}: {text}" if _NO_ANSWER.search(text) else text


def named(location: str, error: Exception) -> StoreRefused | OSError:
    """What an error of a store's client at *location* is: a refusal, or what may end by itself."""
    text = said(error)
    if (way_on := refusal(text)) is not None:
        return StoreRefused(f"{location}: {way_on} ({text[:SHOWN_CHARS_MAX]})")
    return OSError(f"{location}: {text[:SHOWN_CHARS_MAX]}")
