"""The one table from what boto3 raises to `cabrank.errors`, each with its remedy."""

from __future__ import annotations

from botocore import exceptions as boto
from urllib3.exceptions import HTTPError

from cabrank.errors import (
    AccessError,
    CabrankError,
    ChangedError,
    ConfigError,
    ExpiredError,
    MissingBucketError,
    ObjectMissingError,
    StorageError,
    ThrottledError,
    UnreachableError,
)

Rule = tuple[type[CabrankError], str]

_DENIED: Rule = (AccessError, "access denied: allow this role or user the action on it, or pass other credentials")
_UNKNOWN: Rule = (AccessError, "the store does not accept these credentials: check key, secret, token and profile")
_EXPIRED: Rule = (ExpiredError, "the credentials have expired: renew them")
_SLOWER: Rule = (ThrottledError, "the store asks for fewer requests: use fewer readers, or come back later")
_FAILING: Rule = (UnreachableError, "the store failed: come back later")
_ELSEWHERE: Rule = (
    ConfigError,
    "the bucket is elsewhere: pass client_kwargs={'region_name': …} or set AWS_REGION",
)
_CHANGED: Rule = (ChangedError, "the object was replaced after it was planned: list and plan again")
_NO_OBJECT: Rule = (ObjectMissingError, "there is no such object: check the key, or plan again")

CODES: dict[str, Rule] = {
    "NoSuchBucket": (MissingBucketError, "there is no such bucket: create it, or check its name and the endpoint"),
    "NoSuchKey": _NO_OBJECT,
    "NotFound": _NO_OBJECT,
    "404": _NO_OBJECT,
    "PreconditionFailed": _CHANGED,
    "412": _CHANGED,
    "InvalidRange": _CHANGED,
    "416": _CHANGED,
    "AccessDenied": _DENIED,
    "AllAccessDisabled": _DENIED,
    "AccountProblem": _DENIED,
    "InvalidObjectState": (AccessError, "the object is archived: restore it first"),
    "Forbidden": _DENIED,
    "403": _DENIED,
    "401": _UNKNOWN,
    "InvalidAccessKeyId": _UNKNOWN,
    "InvalidToken": _UNKNOWN,
    "InvalidClientTokenId": _UNKNOWN,
    "SignatureDoesNotMatch": _UNKNOWN,
    "RequestTimeTooSkewed": (AccessError, "this machine's clock is wrong, so its signature is not accepted: set it"),
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestExpired": _EXPIRED,
    "SlowDown": _SLOWER,
    "Throttling": _SLOWER,
    "ThrottlingException": _SLOWER,
    "RequestLimitExceeded": _SLOWER,
    "TooManyRequests": _SLOWER,
    "429": _SLOWER,
    "503": _SLOWER,
    "ServiceUnavailable": _SLOWER,
    "InternalError": _FAILING,
    "OperationAborted": _FAILING,
    "RequestTimeout": _FAILING,
    "BadDigest": _FAILING,
    "500": _FAILING,
    "502": _FAILING,
    "504": _FAILING,
    "PermanentRedirect": _ELSEWHERE,
    "AuthorizationHeaderMalformed": _ELSEWHERE,
    "IllegalLocationConstraintException": _ELSEWHERE,
    "301": _ELSEWHERE,
    "InvalidBucketName": (
        ConfigError,
        "this is no name for a bucket: 3 to 63 of a-z, 0-9, dot, hyphen",
    ),
    "EntityTooLarge": (StorageError, "too large for one upload: write it with writer()"),
}
"""By S3's error code, or by the status of answers that have no body (HEAD)."""

_CHECK_CHAIN = "pass storage_options={'anon': True} for a public bucket, or set key and secret, a profile or a role"
_CHECK_HOST = "no answer: check the endpoint and the network"
_CUT = "the answer broke off: check the network"
EXCEPTIONS: tuple[tuple[tuple[type[Exception], ...], Rule], ...] = (
    ((boto.NoCredentialsError, boto.PartialCredentialsError), (AccessError, f"no credentials: {_CHECK_CHAIN}")),
    ((boto.UnauthorizedSSOTokenError, boto.TokenRetrievalError, boto.SSOTokenLoadError), _EXPIRED),
    ((boto.CredentialRetrievalError, boto.MetadataRetrievalError), (ExpiredError, "none came: check the role")),
    ((boto.SSLError,), (StorageError, "connection not trusted: set client_kwargs={'verify': FILE}")),
    ((boto.ChecksumError, boto.FlexibleChecksumError), (UnreachableError, "bytes damaged: check the network")),
    ((boto.IncompleteReadError, boto.ResponseStreamingError), (UnreachableError, _CUT)),
    ((boto.ReadTimeoutError,), (UnreachableError, "the answer stopped coming: check the network")),
    ((boto.ConnectionError, boto.HTTPClientError), (UnreachableError, _CHECK_HOST)),
    ((HTTPError,), (UnreachableError, _CUT)),  # a body's, which boto3 lets through in places
    ((boto.ParamValidationError, boto.BotoCoreError), (ConfigError, "boto3 refuses it: check URI and options")),
)  # fmt: skip
"""By class, the first that fits; what has no answer from the server has no code."""


def translate(error: Exception, uri: str, endpoint: str | None) -> CabrankError | None:
    """Ours for one of boto3's, to be raised from it; None for what is not boto3's."""
    at = f" at {endpoint}" if endpoint else ""
    if isinstance(error, boto.ClientError):
        kind, remedy = _rule(error)
        return kind(f"{uri}{at}: {remedy} [{_code(error)}: {error.response.get('Error', {}).get('Message', '')}]")
    for classes, (kind, remedy) in EXCEPTIONS:
        if isinstance(error, classes):
            return kind(f"{uri}{at}: {remedy} [{error}]")
    return None


def _code(error: boto.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _rule(error: boto.ClientError) -> Rule:
    status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
    rule = CODES.get(_code(error)) or CODES.get(status)
    if rule is None:
        rule = _FAILING if status.startswith("5") else (StorageError, "the store refuses the request")
    return rule
