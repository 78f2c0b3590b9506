"""A boto3 client from s3fs's words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from cabrank.errors import AccessError, ConfigError
from cabrank.store.opening import S3_WORDS, check_words

CLIENT_WORDS = (
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "endpoint_url",
    "region_name",
    "use_ssl",
    "verify",
)
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def check_options(options: Mapping[str, Any]) -> None:
    """`ConfigError` for a word that is unknown, or a value of the wrong kind."""
    check_words(options, S3_WORDS)
    for word in ("client_kwargs", "config_kwargs"):
        if not isinstance(options.get(word) or {}, Mapping):
            raise ConfigError(f"storage_options' {word} is {options[word]!r}: give a mapping")
    check_words(options.get("client_kwargs") or {}, CLIENT_WORDS, "storage_options' client_kwargs")
    if bool(options.get("key")) != bool(options.get("secret")):
        raise ConfigError("storage_options have one of key and secret: give both, or neither to use the environment's")
    is_anonymous(options)


def is_anonymous(options: Mapping[str, Any]) -> bool:
    """`anon`, also as a word, since hyperparameters and environments know nothing but strings."""
    value = options.get("anon") or False
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in ("true", "false"):
        raise ConfigError(f"storage_options' anon is {value!r}: give True or False")
    return word == "true"


def endpoint_of(options: Mapping[str, Any]) -> str | None:
    """The endpoint that was asked for, in options or environment; None for AWS's own."""
    given = options.get("endpoint_url") or (options.get("client_kwargs") or {}).get("endpoint_url")
    return given or next((os.environ[name] for name in ENDPOINT_VARIABLES if os.environ.get(name)), None)


def make_client(options: Mapping[str, Any]) -> Any:
    """A client with its own session, so that credentials are found anew; `ConfigError` for what boto3 refuses."""
    import boto3
    from botocore.exceptions import BotoCoreError, ProfileNotFound

    endpoint = endpoint_of(options)
    given = {"endpoint_url": endpoint, "config": _config(options, endpoint), **(options.get("client_kwargs") or {})}
    try:
        session = boto3.Session(
            aws_access_key_id=options.get("key"),
            aws_secret_access_key=options.get("secret"),
            aws_session_token=options.get("token"),
            profile_name=options.get("profile"),
        )
        if endpoint and not session.region_name:
            given.setdefault("region_name", "us-east-1")  # signatures need one; stores that are not AWS take any
        return session.client("s3", **given)
    except ProfileNotFound as error:
        raise AccessError(f"{error}: name one of the profiles in the AWS configuration files") from error
    except (BotoCoreError, ValueError, TypeError) as error:
        raise ConfigError(f"these storage_options make no S3 client: {error}") from error


def _config(options: Mapping[str, Any], endpoint: str | None) -> Any:
    from botocore import UNSIGNED
    from botocore.config import Config

    words: dict[str, Any] = {
        "connect_timeout": 4,  # seconds; one lost packet is sent again within it
        "read_timeout": 20,
        "max_pool_connections": 64,
        "tcp_keepalive": True,
        "retries": {"total_max_attempts": 1},  # store/retry.py is the only one to try again
    }
    if endpoint:
        words["s3"] = {"addressing_style": "path"}  # bucket.localhost has no address
    if is_anonymous(options):
        words["signature_version"] = UNSIGNED
    try:
        return Config(**(words | dict(options.get("config_kwargs") or {})))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"storage_options' config_kwargs: {error}") from error
