"""The pytest plugin: the fixtures `rocketmq`, `rocketmq_session` and `outbox_engine`, and the marker `rocketmq`.

pytest loads the plugin in every environment with Rucola: import nothing of Rucola before a test uses a fixture. pytest
also rewrites the assert statements of all modules of the distribution, which without cached bytecode doubles the import
time; a finder ahead of pytest's imports them unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from rucola.testing.rocketmq import RocketMQ


class _PlainImportFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, path, target) if fullname.startswith("rucola.") else None


_plain_import_finder = _PlainImportFinder()


def pytest_load_initial_conftests() -> None:
    if _plain_import_finder not in sys.meta_path:
        sys.meta_path.insert(0, _plain_import_finder)


def pytest_unconfigure() -> None:
    if _plain_import_finder in sys.meta_path:
        sys.meta_path.remove(_plain_import_finder)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        'rocketmq(**settings): settings of the broker by their keys in broker.conf, messageDelayLevel="1s 2s"',
    )


@pytest.fixture
def rocketmq(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RocketMQ]:
    """A name server and a broker for this test alone, on free ports; ROCKETMQ_NAMESRV and NAMESRV_ADDR are set.

    `@pytest.mark.rocketmq(messageDelayLevel="1s 2s")` sets keys of broker.conf; the closest marker takes precedence.
    `credentials=Credentials(...)` signs the fixture's own requests, for brokers with access control.
    """
    settings: dict[str, Any] = {}
    for marker in request.node.iter_markers("rocketmq"):
        settings = marker.kwargs | settings
    credentials = settings.pop("credentials", None)
    with _start(tmp_path_factory, settings, credentials) as running:
        _export(running, monkeypatch)
        yield running


@pytest.fixture(scope="session")
def rocketmq_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """A name server and a broker shared by all tests of a run; `unique` returns names for each test."""
    with _start(tmp_path_factory, {}) as running, pytest.MonkeyPatch.context() as environment:
        _export(running, environment)
        yield running


@pytest.fixture
def outbox_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An SQLAlchemy engine on a new SQLite database with the tables of `rucola.reliable`, for this test alone."""
    from sqlalchemy import create_engine

    from rucola.reliable import Tables, migration

    engine = create_engine(f"sqlite:///{tmp_path_factory.mktemp('outbox') / 'outbox.db'}")
    with engine.begin() as connection:
        migration.init(connection, Tables())
    yield engine
    engine.dispose()


def _export(running: RocketMQ, environment: pytest.MonkeyPatch) -> None:
    # Set every variable: one that the developer has set for another cluster must not take precedence.
    for name, address in running.variables.items():
        environment.setenv(name, address)


def _start(
    tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any], credentials: Any = None
) -> AbstractContextManager[RocketMQ]:
    from rucola.testing.rocketmq import RocketMQ  # imported here, so that runs without a broker do not pay for it

    return RocketMQ(tmp_path_factory.mktemp("rocketmq"), settings, credentials)
