"""The REST catalog of a lake: what it has and refuses; tests/e2e has an engine of its own."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ServerError

from rucola.errors import ConfigError, StoreError
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive
from rucola.spark.session import LazySession
from support.rows import put_all_sorts
from support.small_store import SmallStore


def refusal(method: str, url: str) -> tuple[int, str]:
    with pytest.raises(HTTPError) as raised:
        urlopen(Request(url, b"{}" if method != "GET" else None, method=method))
    with raised.value as response:
        error = json.load(response)["error"]
    assert error["code"] == response.status
    return response.status, error["type"]


def test_the_catalog_shows_all_tables_and_refuses_changes(small_store: SmallStore, tmp_path: Path) -> None:
    lake = Archive(tmp_path / "lake")
    session = LazySession("tests", use_spark=False)
    put_all_sorts(small_store)
    archive.run(session, small_store.path, lake, broker_name="a")
    lake.derive({}, every_topic=True)
    with lake.serve_catalog() as (host, port), RestCatalog("lake", uri=f"http://{host}:{port}") as catalog:
        assert host == "127.0.0.1"
        assert catalog.list_namespaces() == [("rucola",), ("topics",)]
        assert catalog.list_namespaces("rucola") == []
        assert catalog.namespace_exists("topics")
        assert not catalog.namespace_exists("other")
        assert catalog.list_tables("rucola") == [("rucola", "keys"), ("rucola", "messages")]
        topics = catalog.list_tables("topics")
        assert topics == [("topics", "%RETRY%a#b=c"), ("topics", "007"), ("topics", "T")]
        assert all(catalog.table_exists(name) and catalog.load_table(name).scan().count() == 4 for name in topics)
        assert not catalog.table_exists("topics.Other")
        for missing in ("topics.Other", "other.T"):
            with pytest.raises(NoSuchTableError):
                catalog.load_table(missing)
        with pytest.raises(NoSuchNamespaceError):
            catalog.list_tables("other")
        # Clients know from the list of endpoints that there are no changes; others are refused.
        messages = catalog.load_table("rucola.messages")
        for change in (
            lambda: messages.transaction().set_properties({"a": "b"}).commit_transaction(),
            lambda: catalog.drop_table("topics.T"),
            lambda: catalog.create_namespace("other"),
        ):
            with pytest.raises(NotImplementedError):
                change()
        for method, path in (("POST", "namespaces"), ("DELETE", "namespaces/topics/tables/T"), ("PUT", "config")):
            assert refusal(method, f"http://{host}:{port}/v1/{path}") == (403, "ForbiddenException")
        assert refusal("GET", f"http://{host}:{port}/v1/views") == (404, "NotFoundException")
        # Commits are seen at once, and so is damage.
        put_all_sorts(small_store)
        archive.run(session, small_store.path, lake, broker_name="a")
        assert messages.refresh().scan().count() == 24
        Path(messages.metadata_location).unlink()
        with pytest.raises(ServerError) as raised:
            catalog.load_table("topics.T")
        assert messages.metadata_location in str(raised.value)


def test_other_lakes_have_no_such_catalog(tmp_path: Path) -> None:
    with pytest.raises(StoreError), Archive(tmp_path).serve_catalog():
        pass
    with pytest.raises(ConfigError):
        Archive("s3://bucket/lake", "prod").serve_catalog()
