"""A schema registry over HTTP, with the two requests that decoders send."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class _Answer(NamedTuple):
    status: int
    body: bytes


class SchemaRegistry:
    """A registry on a free port; `paths` and `authorizations` are those of the requests."""

    def __init__(self) -> None:
        self._answers: dict[str, _Answer] = {}
        self.paths: list[str] = []
        self.authorizations: list[str | None] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.paths.append(self.path)
                registry.authorizations.append(self.headers["Authorization"])
                answer = registry._answers.get(self.path.partition("?")[0], _Answer(404, b"{}"))
                self.send_response(answer.status)
                if answer.status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def add(
        self,
        number: int,
        schema: str,
        kind: str | None = None,
        *,
        references: Any = None,
        subject: str | None = None,
        version: int = 1,
        status: int = 200,
        raw: bytes | None = None,
    ) -> None:
        """Register a schema; `raw` is answered in its place."""
        answer = {"schema": schema} | ({"schemaType": kind} if kind else {})
        answer |= {"references": references} if references else {}
        self._answers[f"/schemas/ids/{number}"] = _Answer(status, raw or json.dumps(answer).encode())
        if subject is not None:
            found = {"id": number, "subject": subject, "version": version, "schema": schema}
            self._answers[f"/subjects/{subject}/versions/{version}"] = _Answer(200, json.dumps(found).encode())

    def __enter__(self) -> SchemaRegistry:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
