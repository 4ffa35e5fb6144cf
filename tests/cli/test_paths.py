"""Paths on the command line and in the Python API: those of this machine, and no other address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rucola.cli.main import main
from rucola.cli.option_types import PathType
from rucola.errors import ConfigError
from rucola.files import local_path
from rucola.spark.archive import Archive
from rucola.spark.jobs import archive, audit, rebuild, replay, search
from rucola.spark.jobs.reconciled_log import log_sources
from rucola.spark.jobs.replay import ReplayOptions
from rucola.spark.jobs.selection import Selection
from rucola.spark.lake import read_snapshot
from rucola.spark.session import LazySession
from rucola.spark.source.options import parse_read_options
from rucola.store.config import StoreConfig
from rucola.store.directory_reader import StoreReader
from rucola.store.tools.check import check
from rucola.store.tools.rebuild import rebuild as rebuild_here
from support.small_store import SmallStore

URLS = ["s3a://bucket/x", "hdfs://name:8020/x", "hdfs:/x", "gs://bucket/x", "abfss://c@account.x/x", "file://host/x"]


def commands(command: click.Command, *names: str) -> Iterator[tuple[str, click.Parameter]]:
    """Each parameter of each command, with the command's name."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            each = command.get_command(context, name)
            assert each is not None
            yield from commands(each, *names, name)
    for parameter in command.params:
        yield " ".join(names), parameter


def test_all_paths_of_all_commands_have_one_type() -> None:
    """Other types of click's would collapse the slashes of a URL before anyone sees them."""
    found = [parameter.type for _, parameter in commands(main)]
    assert len([each for each in found if isinstance(each, PathType)]) > 20
    assert [
        each for each in found if isinstance(each, click.Path | click.File) and not isinstance(each, PathType)
    ] == []


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_no_path(url: str) -> None:
    for given_path in (url, Path(url)) if not url.startswith("file:") else (url,):
        with pytest.raises(ConfigError) as error:
            local_path(given_path)
        assert url.split(":", 1)[0] in str(error.value)
    refused = CliRunner().invoke(main, ["store", "check", url])
    assert (refused.exit_code, url in refused.output.replace("\n", " ")) == (2, True)


@pytest.mark.parametrize("arguments", [["standalone", "--store", "/dev/null"], ["tls", "init", "/dev/null"]])
def test_a_device_is_no_directory(arguments: list[str]) -> None:
    refused = CliRunner().invoke(main, arguments)
    assert (refused.exit_code, "'/dev/null' is a file" in refused.output) == (2, True)


@given(
    st.lists(st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="/\0"), min_size=1), min_size=1)
)
def test_a_file_url_is_its_path_and_every_absolute_path_is_itself(parts: list[str]) -> None:
    path = Path("/", *parts)
    assert local_path(str(path)) == local_path(path) == path
    assert local_path(f"file://{path}") == local_path(f"file:{path}") == path
    assert local_path(f"./{'/'.join(parts)}") == Path("./" + "/".join(parts)) or ":" in parts[0]


def test_a_file_url_names_the_directory(tmp_path: Path) -> None:
    store = SmallStore(tmp_path / "store")
    store.put()
    done = CliRunner().invoke(
        main, ["pipeline", "archive", "--store", f"file://{store.path}", "--out", f"file:{tmp_path}/lake"]
    )
    assert done.exit_code == 0, done.output
    assert sum(file.rows for file in read_snapshot(tmp_path / "lake").rows) == 1


SESSION = LazySession("tests", use_spark=False)
URL = "s3a://bucket/x"


@pytest.mark.parametrize(
    "call",
    [
        lambda store, url: archive.run(SESSION, store, url),
        lambda _, url: archive.run(SESSION, url, "new"),
        lambda _, url: Archive(url).compact(),
        lambda _, url: search.run(SESSION, url, Selection()),
        lambda _, url: audit.run(SESSION, [url]),
        lambda store, url: audit.run(SESSION, [store], url),
        lambda _, url: replay.run(SESSION, url),
        lambda store, url: replay.run(SESSION, store, ReplayOptions("127.0.0.1:1", url)),
        lambda store, url: rebuild.run(SESSION, store, url),
        lambda _, url: log_sources([url]),
        lambda _, url: Archive(url).open().__enter__(),
        lambda _, url: parse_read_options({"storePath": str(url)}),
        lambda _, url: parse_read_options({"path": str(url)}),
        lambda _, url: StoreReader(url),
        lambda _, url: check(url),
        lambda store, url: rebuild_here(store, url),
        lambda _, url: StoreConfig(url),
    ],
)
def test_the_python_api_takes_no_url_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Path, Any], object]
) -> None:
    store = SmallStore(tmp_path / "store")
    store.put()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(ConfigError):
        call(store.path, URL)
    assert list(Path().iterdir()) == []
