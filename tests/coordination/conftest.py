"""An etcd for the tests of a module, and one that a test may kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.etcd import EtcdServer


@pytest.fixture(scope="module")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """An etcd that tests share: each has a prefix of its own."""
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    yield server
    server.stop()


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd that a test may stop, pause or kill."""
    server = EtcdServer(tmp_path / "etcd")
    yield server
    server.stop()
