"""S3 and what speaks its protocol, through boto3. Keys are taken to the letter; listings are never cached."""

from __future__ import annotations

import base64
import io
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any, BinaryIO, TypeVar

from botocore.exceptions import ClientError

from cabrank.errors import CabrankError, ChangedError, ConfigError, ExpiredError, StorageError, UnreachableError
from cabrank.store import Checksum, ObjectInfo, Store, in_order
from cabrank.store.process import PerProcess
from cabrank.store.retry import Patience, persist
from cabrank.store.s3_client import check_options, endpoint_of, make_client
from cabrank.store.s3_errors import translate

T = TypeVar("T")
_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}|arn:[\w:.-]+", re.ASCII)
"""What boto3 sends at all: names given before 2018 may hold more than new ones, and access points have ARNs."""
PART_BYTES = 16 << 20
"""Of a multipart upload's first 1,000 parts; each further 1,000 are larger by as much, which gives 880 GB in 10,000."""

DEAD_SECONDS = 86400.0
"""No upload that lives is older; nothing but its age tells whether its writer lives."""


class S3Store(Store):
    """One set of credentials and one endpoint. Clients are made once a process, and anew after credentials expired."""

    def __init__(self, options: Mapping[str, Any] | None = None, patience: Patience | None = None) -> None:
        """`options` in s3fs's words; `ConfigError` for others. `patience` is for all calls except `read`."""
        self._options = dict(options or {})
        check_options(self._options)
        self._patience = patience or Patience()
        self._client: PerProcess[Any] = PerProcess(self._make_client)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        bucket, key = split(prefix)
        request: dict[str, Any] = {"Bucket": bucket, "Prefix": key}
        found: list[ObjectInfo] = []
        while True:
            page = self._ask(prefix, "list_objects_v2", **request)
            found += [_listed(bucket, item) for item in page.get("Contents", ())]
            if not page.get("IsTruncated"):
                break
            request["ContinuationToken"] = page["NextContinuationToken"]
        # S3 sorts already; stores made of folders put a/b before a.csv
        return in_order(found)

    def stat(self, uri: str) -> ObjectInfo:
        bucket, key = split(uri, whole=True)
        try:
            head = self._ask(uri, "head_object", Bucket=bucket, Key=key)
        except StorageError as error:
            if isinstance(error.__cause__, ClientError):
                # an answer to HEAD has no body: only a GET says what is missing, or what has expired
                self._ask(uri, "get_object", Bucket=bucket, Key=key, Range="bytes=0-0")["Body"].close()
            raise
        return ObjectInfo(f"s3://{bucket}/{key}", head["ContentLength"], _etag(head), head["LastModified"].timestamp())

    def read(self, info: ObjectInfo, start: int = 0, length: int | None = None) -> bytes:
        bucket, key = split(info.uri, whole=True)
        if length is None and info.size is not None:
            length = info.size - start
        request: dict[str, Any] = {"Bucket": bucket, "Key": key}
        if info.etag is not None:
            request["IfMatch"] = f'"{info.etag}"'
        if start or length != info.size:  # a whole object comes without a range: S3 then gives its checksum
            if length == 0:
                return b""
            request["Range"] = f"bytes={start}-" if length is None else f"bytes={start}-{start + length - 1}"
        return self._call(info.uri, "get_object", lambda answer: _body(answer, info, start, length), **request)

    def checksum(self, info: ObjectInfo) -> Checksum | None:
        bucket, key = split(info.uri, whole=True)
        head = self._ask(info.uri, "head_object", Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        if head.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
            return None  # of the parts' checksums, and where the parts ended is not said
        for algorithm in ("crc32", "sha256", "sha1"):
            if value := head.get(f"Checksum{algorithm.upper()}"):
                return Checksum(algorithm, base64.b64decode(value)) if "-" not in value else None
        return None

    def put(self, uri: str, data: bytes) -> ObjectInfo:
        bucket, key = split(uri, whole=True)
        answer = self._ask(uri, "put_object", Bucket=bucket, Key=key, Body=data)
        return ObjectInfo(f"s3://{bucket}/{key}", len(data), _etag(answer))

    @contextmanager
    def writer(self, uri: str) -> Iterator[BinaryIO]:
        upload = _Upload(self, uri)
        try:
            file = io.BufferedWriter(upload, 1 << 20)
            yield file
            file.flush()
            upload.publish()
        except BaseException:
            upload.close()  # first, or the buffer would try to flush once more
            upload.abort()
            raise

    def delete(self, uri: str) -> None:
        bucket, key = split(uri, whole=True)
        self._ask(uri, "delete_object", Bucket=bucket, Key=key)

    def make_bucket(self, name: str) -> None:
        """Creates a bucket, private, in the region of the options; `AccessError` where the name is someone else's."""
        region = self._client.get().meta.region_name
        extra = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        self._ask(f"s3://{name}", "create_bucket", Bucket=name, **extra)

    def _make_client(self) -> Any:
        return make_client(self._options)

    def _ask(self, uri: str, operation: str, **request: Any) -> Any:
        """One operation's answer, tried again while that may help."""
        return persist(lambda: self._call(uri, operation, lambda answer: answer, **request), self._patience)

    def _call(self, uri: str, operation: str, use: Callable[[Any], T], **request: Any) -> T:
        """`use` of one request's answer; what boto3 raises meanwhile leaves as one of `cabrank.errors`."""
        client = self._client.get()
        try:
            return use(getattr(client, operation)(**request))
        except CabrankError:
            raise
        except Exception as error:
            failure = translate(error, uri, endpoint_of(self._options))
            if failure is None:
                raise
            if isinstance(failure, ExpiredError) and "key" not in self._options:
                self._client.forget(client)  # the next try reads the credentials anew
            raise failure from error


class _Upload(io.RawIOBase):
    """A file whose writes become the parts of one upload: at most one part is held, and a small file is one put."""

    def __init__(self, store: S3Store, uri: str) -> None:
        self._store = store
        self._uri = uri
        self._object = dict(zip(("Bucket", "Key"), split(uri, whole=True), strict=True))
        self._held = bytearray()
        self._parts: list[dict[str, Any]] = []
        self._id: str | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._held += data
        while len(self._held) >= (size := PART_BYTES * (1 + len(self._parts) // 1000)):
            self._send(bytes(self._held[:size]))
            del self._held[:size]
        return len(memoryview(data).cast("B"))

    def publish(self) -> None:
        """The object appears, whole."""
        if self._id is None:
            self._store.put(self._uri, bytes(self._held))
            return
        if self._held:
            self._send(bytes(self._held))
        self._ask("complete_multipart_upload", MultipartUpload={"Parts": self._parts})

    def abort(self) -> None:
        """Parts that were sent are removed: they would cost money, unseen."""
        if self._id is not None:
            self._ask("abort_multipart_upload")

    def _send(self, data: bytes) -> None:
        if self._id is None:
            self._sweep()
            self._id = self._store._ask(self._uri, "create_multipart_upload", **self._object)["UploadId"]
        number = len(self._parts) + 1
        answer = self._ask("upload_part", PartNumber=number, Body=data)
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"]})

    def _sweep(self) -> None:
        """Aborts uploads to the same key whose writers were killed: their parts cost money, unseen. Where it is not
        allowed, it is left to the bucket's lifecycle rule."""
        with suppress(StorageError):
            request = {"Bucket": self._object["Bucket"], "Prefix": self._object["Key"]}
            for found in self._store._ask(self._uri, "list_multipart_uploads", **request).get("Uploads", ()):
                if found["Key"] == self._object["Key"] and time.time() - found["Initiated"].timestamp() > DEAD_SECONDS:
                    abandoned = {**self._object, "UploadId": found["UploadId"]}
                    self._store._ask(self._uri, "abort_multipart_upload", **abandoned)

    def _ask(self, operation: str, **request: Any) -> Any:
        return self._store._ask(self._uri, operation, UploadId=self._id, **self._object, **request)


def split(uri: str, *, whole: bool = False) -> tuple[str, str]:
    """Bucket and key of `s3://bucket/key`, to the letter. `whole`: a key is needed, too. `ConfigError` otherwise."""
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in ("s3", "s3a", "s3n") or not bucket or (whole and not key):
        raise ConfigError(f"{uri!r} names no S3 {'object' if whole else 'bucket'}: write s3://BUCKET/KEY")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(f"{uri!r}: {bucket!r} is no name for a bucket: 3 to 63 of a-z, 0-9, dot, hyphen")
    return bucket, key


def _listed(bucket: str, item: Mapping[str, Any]) -> ObjectInfo:
    modified = item["LastModified"].timestamp()
    return ObjectInfo(f"s3://{bucket}/{item['Key']}", item["Size"], _etag(item), modified)


def _etag(answer: Mapping[str, Any]) -> str | None:
    etag: str | None = answer.get("ETag")
    return etag.strip('"') if etag else None


def _body(answer: Mapping[str, Any], info: ObjectInfo, start: int, length: int | None) -> bytes:
    """The bytes asked for, or an error: a server that ignored the range or the pin is found out here."""
    with closing(answer["Body"]) as body:  # as its own context it would be the bare stream, which checks nothing
        if info.etag is not None and _etag(answer) not in (None, info.etag):
            raise ChangedError(f"{info.uri} was replaced after it was planned: list and plan again")
        if (start or length != info.size) and not answer.get("ContentRange", "").startswith(f"bytes {start}-"):
            raise UnreachableError(f"{info.uri}: asked for bytes from {start}, got {answer.get('ContentRange')!r}")
        data: bytes = body.read()
    if length is not None and len(data) != length:
        raise UnreachableError(f"{info.uri}: {len(data)} of {length} bytes arrived: check the network")
    return data
