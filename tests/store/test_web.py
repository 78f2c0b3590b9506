"""WebStore before servers of several habits, none of which may lead to a wrong byte."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from cabrank.data.fetch import Fetcher
from cabrank.errors import AccessError, ChangedError, ConfigError, ObjectMissingError, ThrottledError, UnreachableError
from cabrank.store import Store
from cabrank.store.retry import Patience
from cabrank.store.web import WebStore

BODY = bytes(range(250)) * 20
DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
QUICK = Patience(attempts=3, first=0.001, cap=0.001)


@dataclass
class Habits:
    """What a server does."""

    ranges: bool = True
    etag: str = '"v1"'
    modified: str = DATE
    conditions: bool = True
    length: bool = True
    status: int = 200
    body: bytes = BODY
    pages: dict[str, str] = field(default_factory=dict)
    seen: list[tuple[str, str]] = field(default_factory=list)
    """Path and range of each request."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        habits: Habits = self.server.habits  # type: ignore[attr-defined]
        span = self.headers.get("Range", "")
        habits.seen.append((self.path, span))
        if self.path in habits.pages:
            self._answer(200, {"Content-Type": "text/html"}, habits.pages[self.path].encode())
        elif self.path == "/missing" or self.path.endswith("/"):
            self._answer(404, {}, b"no")
        elif habits.status != 200:
            self._answer(habits.status, {}, b"no")
        elif habits.conditions and self.headers.get("If-Match", habits.etag) != habits.etag:
            self._answer(412, {}, b"")
        else:
            self._object(habits, span)

    def _object(self, habits: Habits, span: str) -> None:
        headers = {name: value for name, value in (("ETag", habits.etag), ("Last-Modified", habits.modified)) if value}
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", span)
        if match is None or not habits.ranges:
            self._answer(200, headers, habits.body, length=habits.length)
            return
        start, size = int(match[1]), len(habits.body)
        end = min(int(match[2] or size), size - 1)
        if start >= size:
            self._answer(416, {"Content-Range": f"bytes */{size}"}, b"")
        else:
            self._answer(206, headers | {"Content-Range": f"bytes {start}-{end}/{size}"}, habits.body[start : end + 1])

    def _answer(self, status: int, headers: dict[str, str], body: bytes, *, length: bool = True) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if length:
            self.send_header("Content-Length", str(len(body)))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 (http.server's name)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (http.server's name)
        """Quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has seen enough hangs up."""


Serve = Callable[[Habits], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server of the given habits; its root."""
    with ExitStack() as stack:

        def start(habits: Habits) -> str:
            server = stack.enter_context(_Server(("127.0.0.1", 0), _Handler))
            server.habits = habits  # type: ignore[attr-defined]
            Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}"

        yield start


HABITS = {
    "all that one could wish": Habits(),
    "no ETag": Habits(etag=""),
    "a weak ETag": Habits(etag='W/"v1"'),
    "nothing to pin by": Habits(etag="", modified=""),
    "ranges ignored": Habits(ranges=False),
    "ranges ignored, nothing to pin by": Habits(ranges=False, etag="", modified=""),
    "no length either": Habits(ranges=False, etag="", modified="", length=False),
    "conditions ignored": Habits(conditions=False),
}


def _fetcher(store: Store) -> Fetcher:
    return Fetcher(store, range_bytes=700, patience=QUICK)


@pytest.mark.parametrize("name", HABITS)
def test_whole_and_parts_are_what_the_server_holds(serve: Serve, name: str) -> None:
    store = WebStore(patience=QUICK)
    info = store.stat(f"{serve(HABITS[name])}/x.csv")
    assert info.size == (len(BODY) if HABITS[name].length else None)
    fetcher = _fetcher(store)
    assert bytes(fetcher.fetch(info)) == BODY
    assert bytes(fetcher.fetch_range(info, 123, 2000)) == BODY[123:2123]
    assert store.read(info, 4990, 10) == BODY[4990:]
    assert fetcher.ledger.unpinned == (0 if info.pin else 2)


def test_what_is_read_in_ranges_and_what_whole(serve: Serve) -> None:
    for habits, requests in ((Habits(), 8), (Habits(ranges=False), 1), (Habits(etag="", modified=""), 1)):
        fetcher = _fetcher(store := WebStore())
        fetcher.fetch(store.stat(f"{serve(habits)}/x.csv"))
        assert fetcher.ledger.requests == requests


@pytest.mark.parametrize("name", ["all that one could wish", "no ETag", "ranges ignored", "conditions ignored"])
def test_a_replaced_object_is_noticed(serve: Serve, name: str) -> None:
    habits = Habits(**{key: getattr(HABITS[name], key) for key in ("ranges", "etag", "modified", "conditions")})
    store = WebStore(patience=QUICK)
    info = store.stat(f"{serve(habits)}/x.csv")
    habits.body = BODY[::-1]
    habits.etag, habits.modified = habits.etag and '"v2"', "Thu, 22 Oct 2015 07:28:00 GMT"
    for start, length in ((0, None), (5, 10)):
        with pytest.raises(ChangedError, match=r"http://.*/x.csv.*replaced"):
            store.read(info, start, length)


def test_an_empty_object(serve: Serve) -> None:
    for ranges in (True, False):
        store = WebStore(patience=QUICK)
        info = store.stat(f"{serve(Habits(body=b'', ranges=ranges))}/x.csv")
        assert info.size == 0
        assert store.read(info) == b""


def test_listing_follows_the_links_of_index_pages(serve: Serve) -> None:
    habits = Habits(pages={
        "/d/": '<a href="../">up</a> <a href="part-1.csv">1</a> <a href="a%20b.csv">ab</a> <a href="sub/">s</a>'
        ' <a href="?C=N">N</a>',
        "/d/sub/": '<a href="part-2.csv">2</a>',
    })  # fmt: skip
    root = serve(habits)
    store = WebStore(patience=QUICK)
    infos = list(store.list(f"{root}/d/"))
    assert [info.uri for info in infos] == [
        f"{root}/d/{name}" for name in ("a%20b.csv", "part-1.csv", "sub/part-2.csv")
    ]
    assert {(info.size, info.etag) for info in infos} == {(5000, "v1")}
    assert [info.uri for info in store.list(f"{root}/d/part")] == [f"{root}/d/part-1.csv"]
    habits.pages["/d/"] += '<a href="part-3.csv">3</a>'
    assert len(list(store.list(f"{root}/d/"))) == 4


def test_without_an_index_page(serve: Serve) -> None:
    root = serve(Habits())
    store = WebStore(patience=QUICK)
    assert [info.uri for info in store.list(f"{root}/x.csv")] == [f"{root}/x.csv"]
    assert list(store.list(f"{root}/nothing/")) == []
    assert list(store.list(f"{root}/missing")) == []


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, AccessError), (403, AccessError), (404, ObjectMissingError), (410, ObjectMissingError), (412, ChangedError),
     (429, ThrottledError), (503, ThrottledError), (500, UnreachableError), (502, UnreachableError)],
)  # fmt: skip
def test_refusals(serve: Serve, status: int, error: type[Exception]) -> None:
    uri = f"{serve(habits := Habits(status=status))}/x.csv"
    with pytest.raises(error, match=rf"{uri}.*\[{status}") as caught:
        WebStore(patience=QUICK).stat(uri)
    assert type(caught.value) is error
    assert len(habits.seen) == (3 if issubclass(error, UnreachableError) else 1)


def test_nobody_listens() -> None:
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:9/x.*gave up after 3 tries"):
        WebStore(patience=QUICK).stat("http://127.0.0.1:9/x")


def test_web_servers_are_only_read_from() -> None:
    store = WebStore()
    for call in (
        lambda: store.put("https://h/x", b""),
        lambda: store.writer("https://h/x"),
        lambda: store.delete("https://h/x"),
    ):
        with pytest.raises(ConfigError, match="only read from"):
            call()
