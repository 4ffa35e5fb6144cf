"""Fixtures for the tests of the command line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rucola.cli import output
from support.golden_cluster import GoldenCluster
from support.servers import server


@pytest.fixture(scope="module")
def cluster(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoldenCluster]:
    """Serve a copy of the golden store, for all tests of a module."""
    directory = tmp_path_factory.mktemp("cluster")
    store = Path(shutil.copytree(golden / "g1-clean" / "store", directory / "store"))
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    conf = shutil.copy(golden / "g1-clean" / "broker.conf", directory)  # changed settings are written into it
    with server("standalone", "--store", store, *ports, "-c", conf, log=directory / "log") as standalone:
        yield GoldenCluster(*standalone.addresses(), (golden / "g1-clean" / "mqadmin.txt").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def earlier_versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory for the sources of earlier versions (support.earlier)."""
    return tmp_path_factory.mktemp("earlier")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are fitted to 80 columns, as on a terminal."""
    monkeypatch.setattr(output, "terminal_width", lambda: 80)
