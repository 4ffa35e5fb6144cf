"""What the tests of all rooms share: the golden data of a real Apache RocketMQ 4.9.8 broker, unpacked once."""

from __future__ import annotations

import logging
import lzma
import os
import shutil
import signal
import tarfile
import time
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from rucola.client import ClientTls
from rucola.name_server_addresses import NAMESRV_VARIABLES
from rucola.store.config import StoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from rucola.testing.rocketmq import RocketMQ
from support.certificates import Certificates
from support.faults import SHARED
from support.stores import OpenStore, config

# How long an example takes, to draw or to try, is the machine's affair. `make quick` and `make pythons` take the second
# profile, and in proportion fewer examples where a test sets their number (`support.examples`).
_UNTIMED = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("rucola", _UNTIMED)
hypothesis.settings.register_profile("quick", _UNTIMED, max_examples=20)
hypothesis.settings.load_profile("rucola")

# Databases need the extra `reliable`, which the environments of `make pythons` lack.
pytest_plugins = ["support.database_fixtures"] if find_spec("sqlalchemy") else []
# A developer's own cluster must get no message of a test, and no command of one may change a developer's database.
for _name in (*NAMESRV_VARIABLES, ClientTls.VARIABLE, "RUCOLA_DATABASE"):
    os.environ.pop(_name, None)
# A shell starts its background jobs with SIGINT ignored; the programs of the tests would inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ARCHIVES = Path(__file__).parent / "golden"
EXTERNAL = {
    "ali_ons", "cpp", "duckdb_iceberg", "installed", "mariadb", "own_db", "own_etcd", "postgresql", "postgresql_db",
    "prometheus", "redis_server", "rocketmq_nodejs", "rocketmq_v5", "shared_etcd",
}  # fmt: skip
"""Fixtures, and parameters that name one, which start programs other than Rucola's."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use such a fixture or parameter as `external`; `make quick` leaves them out."""
    for item in items:
        if isinstance(item, pytest.Function):
            parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
            names = [*item.fixturenames, *(value for value in parameters if isinstance(value, str))]
            if not EXTERNAL.isdisjoint(names):
                item.add_marker(pytest.mark.external)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Restore the log: a server's command sets the level, and PySpark the format of the handlers that it is given.

    pytest gives them to loggers that do not propagate, as PySpark's are once it has logged an error of a query.
    """
    level = logging.root.level
    try:
        return (yield)
    finally:
        logging.root.setLevel(level)
        for logger in logging.root.manager.loggerDict.values():
            if isinstance(logger, logging.Logger):
                logger.propagate = True


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with g1-clean/, g2-crash/, recovery/ and wire.jsonl. For all tests of a run: copy before writing."""
    directory = tmp_path_factory.mktemp("golden")
    for name in ("g1-clean", "g2-crash", "recovery"):
        with tarfile.open(ARCHIVES / f"{name}.tar.xz") as archive:
            archive.extractall(directory, filter="data")
    with lzma.open(ARCHIVES / "wire.jsonl.xz") as packed, open(directory / "wire.jsonl", "wb") as wire:
        shutil.copyfileobj(packed, wire)
    return directory


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority, and certificates for the loopback addresses. For all tests of a run: copy before writing."""
    return Certificates(tmp_path_factory.mktemp("tls") / "certificates")


@pytest.fixture(scope="session")
def shared_rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """A name server and a broker for all tests of a run; `unique` makes names that no other test has.

    Unlike the plugin's `rocketmq_session` it leaves the environment alone: brokers of other tests would register there.
    """
    with RocketMQ(tmp_path_factory.mktemp(SHARED), {}) as running:
        yield running


@pytest.fixture
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the time zone to UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    """Open stores under tmp_path. What is still open at the end is closed, and every store must then be sound."""
    opened: list[MessageStore] = []

    def open_one(settings: StoreConfig | None = None, *, now_ms: int = 1, **hooks: Any) -> MessageStore:
        store = MessageStore(settings or config(tmp_path / "store"), **hooks)
        store.open(now_ms)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()
    for root in {store.config.store_path_root_dir for store in opened}:
        assert check(root) == []
