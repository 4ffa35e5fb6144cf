"""SeaweedFS: an object store with S3's interface, and an Iceberg REST catalog for each of its buckets of tables."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, RESTError

from support.ports import EPHEMERAL, HOST, free_ports
from support.processes import wait_for

KEY, SECRET = "key", "secret"
_BUCKETS = 24
_SERVERS = ("master.port", "volume.port", "filer.port", "s3.port", "admin.port", "s3.port.iceberg")
_GRPC_DISTANCE = 10_000
"""Each server listens for gRPC at this distance from its port, too."""


class TableBucket(NamedTuple):
    """A bucket without tables, and its catalog as properties of pyiceberg's configuration."""

    url: str
    catalog: Mapping[str, str]

    def environment(self, name: str) -> dict[str, str]:
        """The variables that give the catalog a name."""
        begin = f"PYICEBERG_CATALOG__{name.upper()}__"
        keys = {key: key.replace(".", "__").replace("-", "_").upper() for key in self.catalog}
        return {begin + keys[key]: value for key, value in self.catalog.items()}


@contextmanager
def object_store(directory: Path) -> Iterator[Iterator[TableBucket]]:
    """Start the server, and yield its buckets."""
    ports = [port for port in free_ports(60, _GRPC_DISTANCE) if port + _GRPC_DISTANCE < EPHEMERAL]
    server = dict(zip(_SERVERS, ports, strict=False))
    options = {
        "dir": directory,
        "ip": HOST,
        "ip.bind": HOST,
        "master.telemetry": "false",
        "admin.ui": "false",
        "webdav": "false",
        "s3.port.lance": 0,
        "filer.localSocket": directory / "filer.sock",
        "s3.localSocket": directory / "s3.sock",
        "tableBucket": ",".join(f"lake{number}" for number in range(_BUCKETS)),
        **server,
    }
    command = [str(Path(sysconfig.get_path("scripts")) / "weed"), "mini"]
    credentials = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    with (
        (directory / "log").open("wb") as log,
        subprocess.Popen(
            [*command, *(f"-{name}={value}" for name, value in options.items())],
            stdout=log,
            stderr=log,
            env={**os.environ, **credentials},
            cwd=directory,
        ) as process,
    ):
        try:
            buckets = [
                TableBucket(
                    f"s3://lake{number}",
                    {
                        "type": "rest",
                        "uri": f"http://{HOST}:{server['s3.port.iceberg']}",
                        "warehouse": f"s3://lake{number}",
                        "credential": f"{KEY}:{SECRET}",
                        "oauth2-server-uri": f"http://{HOST}:{server['s3.port.iceberg']}/v1/oauth/tokens",
                        "s3.endpoint": f"http://{HOST}:{server['s3.port']}",
                        "s3.access-key-id": KEY,
                        "s3.secret-access-key": SECRET,
                        "s3.region": "us-east-1",
                    },
                )
                for number in range(_BUCKETS)
            ]
            wait_for(lambda: _is_ready(buckets[-1]), process)
            yield iter(buckets)
        finally:
            process.terminate()


@contextmanager
def vending_catalog(bucket: TableBucket) -> Iterator[TableBucket]:
    """Put a server before the catalog that gives the keys of the object store with each table, as other catalogs do.

    The properties of the catalog itself are then without them.
    """
    given = {name: bucket.catalog[name] for name in ("s3.access-key-id", "s3.secret-access-key")}
    upstream = urlsplit(bucket.catalog["uri"]).netloc

    class Vending(BaseHTTPRequestHandler):
        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name: value for name, value in self.headers.items() if name.lower() != "accept-encoding"}
            with closing(HTTPConnection(upstream)) as connection:
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                content = answer.read()
            if b'"metadata-location"' in content:
                table = json.loads(content)
                content = json.dumps({**table, "config": {**(table.get("config") or {}), **given}}).encode()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_DELETE = _forward  # noqa: N815 - named by the server

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Vending) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            own = {name: value for name, value in bucket.catalog.items() if name not in given}
            yield TableBucket(bucket.url, {**own, "uri": f"http://{HOST}:{server.server_port}"})
        finally:
            server.shutdown()
            thread.join()


def _is_ready(bucket: TableBucket) -> bool:
    try:
        load_catalog("probe", **bucket.catalog).list_namespaces()
    except (OSError, RESTError, NoSuchNamespaceError):
        return False
    return True
