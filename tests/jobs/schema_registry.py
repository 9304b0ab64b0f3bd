"""A schema registry in this process, with the two answers that readers need, and writers of messages that begin with its numbers."""

from __future__ import annotations

import base64
import io
import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro


@dataclass
class Registry:
    """Schemas by number, and by subject and version; `fails` is an answer in place of all others."""

    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[tuple[str, int], int] = field(default_factory=dict)
    serialized: dict[int, str] = field(default_factory=dict)
    """Schemas of Protobuf as compilers make them, in Base64."""
    login: tuple[str, str] | None = None
    fails: tuple[int, bytes] | None = None
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def add(
        self,
        schema: Any,
        number: int | None = None,
        *,
        kind: str = "AVRO",
        subject: str = "rows-value",
        references: Sequence[tuple[str, str, int]] = (),
        serialized: bytes | None = None,
    ) -> int:
        """Register a schema; return its number. `references` are names, subjects and versions."""
        number = number or len(self.schemas) + 1
        version = 1 + sum(name == subject for name, _ in self.subjects)
        text = schema if isinstance(schema, str) else json.dumps(schema)
        more = {} if kind == "AVRO" else {"schemaType": kind}
        refers = [{"name": name, "subject": of, "version": at} for name, of, at in references]
        self.schemas[number] = {"schema": text, **more, **({"references": refers} if refers else {})}
        self.subjects[subject, version] = number
        if serialized is not None:
            self.serialized[number] = base64.b64encode(serialized).decode()
        return number

    def answer(self, path: str, authorization: str | None) -> tuple[int, bytes]:
        self.asked.append(path)
        if self.fails is not None:
            return self.fails
        if (
            self.login is not None
            and authorization != f"Basic {base64.b64encode(':'.join(self.login).encode()).decode()}"
        ):
            return 401, b'{"error_code": 401, "message": "Unauthorized"}'
        place, _, query = path.partition("?")
        parts = place.strip("/").split("/")
        if parts[:2] == ["schemas", "ids"]:
            number = int(parts[2])
        elif parts[0] == "subjects":
            number = self.subjects.get((parts[1], int(parts[3])), -1)
        else:
            return 404, b"<html>Not Found</html>"
        if number not in self.schemas:
            return 404, b'{"error_code": 40403, "message": "Schema not found"}'
        content = dict(self.schemas[number])
        if query == "format=serialized" and number in self.serialized:
            content["schema"] = self.serialized[number]
        return 200, json.dumps(content).encode()


def _handler(registry: Registry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = registry.answer(self.path, self.headers.get("Authorization"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextmanager
def running(registry: Registry, trusted: ssl.SSLContext | None = None) -> Iterator[Registry]:
    """Let a registry answer at its `url` while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(registry))
    if trusted is not None:
        server.socket = trusted.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    registry.url = f"{'http' if trusted is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def framed(number: int, body: bytes) -> bytes:
    """Return a payload with the number of its schema before it."""
    return b"\0" + number.to_bytes(4, "big") + body


def avro(number: int, schema: Any, value: Any, *references: Any) -> bytes:
    """Return a value in Avro, with the number of its schema before it."""
    named: dict[str, Any] = {}
    for reference in references:
        fastavro.parse_schema(reference, named)
    content = io.BytesIO()
    fastavro.schemaless_writer(content, fastavro.parse_schema(schema, named), value)
    return framed(number, content.getvalue())
