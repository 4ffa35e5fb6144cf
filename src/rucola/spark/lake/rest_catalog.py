"""Read-only REST catalog of a lake in a directory, as Iceberg's REST specification describes it.

    GET          /v1/config
    GET          /v1/namespaces
    GET, HEAD    /v1/namespaces/<namespace>
    GET          /v1/namespaces/<namespace>/tables
    GET, HEAD    /v1/namespaces/<namespace>/tables/<table>

All other requests are refused with ForbiddenException. Engines get the metadata of a table, and read its files
themselves, by the absolute paths in the metadata.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote

import msgspec

from rucola.spark.lake.data_files import first_line
from rucola.spark.lake.tables import open_tables, read_snapshot

_log = logging.getLogger(__name__)

_ROUTES: Final = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
)


@contextmanager
def serve_catalog(root: Path, host: str, port: int) -> Iterator[tuple[str, int]]:
    """Serve the catalog of a lake in a thread, and yield the address. Port 0 picks a free one.

    Raises StoreError if there is no lake, StoreCorrupt if it is damaged, OSError if the address cannot be used.
    """
    read_snapshot(root)
    with _Server(root, (host, port)) as server:
        thread = threading.Thread(target=server.serve_forever, name="rest-catalog")
        thread.start()
        try:
            yield host, server.server_port
        finally:
            server.shutdown()
            thread.join()


MAX_CONNECTIONS: Final = 64
"""Further ones are closed at once."""


class _Server(ThreadingHTTPServer):
    block_on_close = False  # a connection may be idle

    def __init__(self, root: Path, address: tuple[str, int]) -> None:
        self.root = root
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    server: _Server

    def do_GET(self) -> None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # the body is not read
        path, _, query = self.path.partition("?")
        try:
            found = self._resource([unquote(part) for part in path.strip("/").split("/")], parse_qs(query))
        except (NoSuchNamespaceError, NoSuchTableError) as error:
            kind = "NoSuchTableException" if isinstance(error, NoSuchTableError) else "NoSuchNamespaceException"
            self._refuse(HTTPStatus.NOT_FOUND, kind, first_line(error))
        except Exception as error:
            _log.warning("%s %s: %s", self.command, self.path, first_line(error))
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError", first_line(error))
        else:
            if found is None:
                self._refuse(HTTPStatus.NOT_FOUND, "NotFoundException", f"there is no {path}")
            else:
                self._answer(HTTPStatus.OK, found)

    do_HEAD = do_GET  # noqa: N815

    def _refuse_change(self) -> None:
        what = f"{self.command} {self.path.partition('?')[0]}"
        self._refuse(
            HTTPStatus.FORBIDDEN, "ForbiddenException", f"{what}: this catalog is read-only; `rucola pipeline` writes"
        )

    do_POST = do_PUT = do_DELETE = do_PATCH = _refuse_change  # noqa: N815

    def _resource(self, path: list[str], query: dict[str, list[str]]) -> dict[str, Any] | None:
        """Return the resource at a path, None if there is no such route."""
        from pyiceberg.exceptions import NoSuchNamespaceError

        if path == ["v1", "config"]:
            return {"defaults": {}, "overrides": {}, "endpoints": _ROUTES}
        if path[:2] != ["v1", "namespaces"]:
            return None
        with open_tables(self.server.root) as tables:
            catalog = None if tables is None else tables.catalog
            names = [] if catalog is None else sorted(catalog.list_namespaces())
            if len(path) == 2:
                parent = query.get("parent", [""])[0]
                if parent and (parent,) not in names:
                    raise NoSuchNamespaceError(f"there is no namespace {parent}")
                return {"namespaces": [] if parent else names}
            if catalog is None or (path[2],) not in names:
                raise NoSuchNamespaceError(f"there is no namespace {path[2]}")
            match path[2:]:
                case [namespace]:
                    return {"namespace": [namespace], "properties": {}}
                case [namespace, "tables"]:
                    listed = sorted(catalog.list_tables(namespace))
                    return {"identifiers": [{"namespace": [namespace], "name": table[-1]} for table in listed]}
                case [namespace, "tables", name]:
                    table = catalog.load_table((namespace, name))
                    metadata = msgspec.Raw(table.metadata.model_dump_json().encode())
                    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}
        return None

    def _refuse(self, status: HTTPStatus, kind: str, message: str) -> None:
        self.close_connection = True  # whose body may not have been read
        self._answer(status, {"error": {"message": message, "type": kind, "code": status}})

    def _answer(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        body = msgspec.json.encode(content)
        if self.command == "HEAD":
            status, body = (HTTPStatus.NO_CONTENT if status == HTTPStatus.OK else status), b""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)
