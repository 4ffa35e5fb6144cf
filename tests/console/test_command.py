"""`rucola console` and `rucola standalone --console` as processes."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from rucola.spark.jobs import archive
from rucola.spark.session import LazySession
from support.databases import OutboxDatabase
from support.servers import run, server
from support.small_store import SmallStore

pytestmark = pytest.mark.slow


def test_a_standalone_server_has_its_console_and_another_process_may_be_one(
    tmp_path: Path, sqlite_db: OutboxDatabase
) -> None:
    old, lake = SmallStore(tmp_path / "old"), tmp_path / "lake"
    old.put()
    archive.run(LazySession("tests", use_spark=False), old.path, lake)
    (tmp_path / "roles").write_text("*=admin\n")
    options = "--lake", lake, "--database", sqlite_db.url, "--table-prefix", sqlite_db.tables.prefix
    options += "--body-roles", tmp_path / "roles"

    def reads_all(url: str) -> None:
        assert "master" in httpx.get(url).text
        query = {"sql": "SELECT count(*) AS n FROM messages", "format": "json"}
        assert httpx.get(f"{url}tables", params=query, timeout=60).json()["rows"] == [{"n": 1}]
        assert httpx.get(f"{url}outbox").status_code == 200

    store, ports = tmp_path / "store", ("--namesrv-port", "0", "--broker-port", "0", "--console-port", "0")
    both = server("standalone", "--store", store, *ports, "--console", *options, log=tmp_path / "log")
    with both as running:
        found = re.search(r"namesrv=(\S+) .* console=(http://127\.0\.0\.1:\d+/)$", running.first_line)
        assert found, running.first_line
        reads_all(found[2])
        directory = tmp_path / "state"
        arguments = "console", "-n", found[1], "--port", "0", "--directory", directory, "--prefix", "/rucola"
        with server(*arguments, *options, log=tmp_path / "console.log") as console:
            ready = re.fullmatch(r"rucola ready console=(http://127\.0\.0\.1:\d+/rucola/)\n", console.first_line)
            assert ready, console.first_line
            reads_all(ready[1])
            assert console.stop() == 0
        assert (directory / "history.db").exists()
        assert running.stop() == 0
    assert (tmp_path / "store-console" / "console.db").exists()
    assert run("store", "check", store).returncode == 0
    missing = run("console", "--port", "0", "--database", f"sqlite:///{tmp_path}/none.db")
    assert (missing.returncode, "reliable init" in missing.stderr) == (1, True)
    refused = run("console", "--bind", "0.0.0.0", "--port", "0")
    assert (refused.returncode, "accounts" in refused.stderr) == (1, True)
    without = run("standalone", "--store", store, "--lake", lake)
    assert (without.returncode, "--lake" in without.stderr, "--console" in without.stderr) == (2, True, True)
