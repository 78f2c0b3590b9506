"""A small HTTP proxy that misbehaves on purpose, to stand between a client and a store."""

from __future__ import annotations

import http.client
import re
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any
from urllib.parse import urlsplit

ERRORS = {
    "slow_down": (503, "SlowDown", "Please reduce your request rate."),
    "internal_error": (500, "InternalError", "We encountered an internal error."),
    "expired_400": (400, "ExpiredToken", "The provided token has expired."),
    "expired_403": (403, "ExpiredToken", "The provided token has expired."),
    "denied": (403, "AccessDenied", "Access Denied"),
}
BODIES = ("reset", "truncate", "corrupt")  # kinds that spoil a good answer
KINDS = (*ERRORS, *BODIES, "hang", "replace")


@dataclass
class Fault:
    """What to do to the first `first` requests (all, when None) for each target whose line matches `where`."""

    kind: str
    first: int | None
    where: re.Pattern[str]
    replace: Callable[[], None] | None


class FaultProxy:
    """Forwards to `upstream` and counts: `seen` requests by method, `injected` faults by kind."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.seen: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()
        self.tokens: set[str] = set()  # the security tokens that clients sent
        self.released = Event()  # ends every hanging answer
        self._faults: list[Fault] = []
        self._targets: Counter[tuple[int, str]] = Counter()
        self._lock = Lock()
        self._server = _Server(("127.0.0.1", 0), self)

    @property
    def endpoint_url(self) -> str:
        """Where clients go."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def inject(
        self,
        kind: str,
        first: int | None = None,
        where: str = "^GET .*/part",
        replace: Callable[[], None] | None = None,
    ) -> None:
        """From now on; a target is method, path and range, and `where` is searched in `METHOD path`."""
        assert kind in KINDS
        self._faults.append(Fault(kind, first, re.compile(where), replace))

    def fault_of(self, method: str, path: str, span: str) -> Fault | None:
        """The fault that this request gets."""
        with self._lock:
            self.seen[method] += 1
            for number, fault in enumerate(self._faults):
                target = (number, f"{method} {path} {span}")
                if not fault.where.search(f"{method} {path}") or self._targets[target] == fault.first:
                    continue
                self._targets[target] += 1
                self.injected[fault.kind] += 1
                return fault
        return None

    @contextmanager
    def running(self) -> Iterator[FaultProxy]:
        """Serves until the block ends."""
        thread = Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.released.set()
            self._server.shutdown()
            thread.join()
            self._server.close_all()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], proxy: FaultProxy) -> None:
        super().__init__(address, _Handler)
        self.proxy = proxy
        self.connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are what this is for."""

    def close_all(self) -> None:
        for connection in list(self.connections):
            with connection:
                self.connections.discard(connection)
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proxy.tokens.add(self.headers.get("x-amz-security-token", ""))
        fault = proxy.fault_of(self.command, self.path, self.headers.get("Range", ""))
        if fault is None:
            self._forward(body, "")
        elif fault.kind in ERRORS:
            self._refuse(*ERRORS[fault.kind])
        elif fault.kind == "hang":
            proxy.released.wait(60)
            self.close_connection = True
        else:
            if fault.replace is not None:
                fault.replace()
            self._forward(body, fault.kind)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 (http.server's names)

    def _refuse(self, status: int, code: str, message: str) -> None:
        xml = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(xml)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(xml)

    def _forward(self, body: bytes, kind: str) -> None:
        upstream = http.client.HTTPConnection(urlsplit(self.server.proxy.upstream).netloc, timeout=30)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            upstream.request(self.command, self.path, body=body or None, headers=headers)
            answer = upstream.getresponse()
            data = answer.read()
        finally:
            upstream.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "server", "date"):
                self.send_header(name, value)
        size = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", size or "0")
        self.end_headers()
        self._send(data, kind)

    def _send(self, data: bytes, kind: str) -> None:
        if kind == "corrupt":
            data = bytes([data[0] ^ 1]) + data[1:]
        if kind not in ("reset", "truncate"):
            self.wfile.write(data)
            return
        self.wfile.write(data[: len(data) // 2])
        self.wfile.flush()
        self.close_connection = True
        if kind == "reset":  # no linger: the close sends RST and not FIN
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (http.server's name)
        """Quiet."""
