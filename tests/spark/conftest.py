"""One Spark session for all tests of the room, and stores to read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rucola.spark.session import AnySession, LazySession, local_session
from support.object_store import TableBucket, object_store
from support.small_store import SmallStore


@pytest.fixture
def spark() -> SparkSession:
    """The session of this process; a new one where a test, such as the demonstration's, has stopped it."""
    return local_session("tests", cores=2, is_short=True)


@pytest.fixture(params=["in Spark", "in this process"])
def jobs(request: pytest.FixtureRequest) -> AnySession:
    """What jobs are given, so that a test sees them run in Spark as well as in this process."""
    if request.param == "in Spark":
        session: SparkSession = request.getfixturevalue("spark")
        return session
    return LazySession("tests", use_spark=False)


@pytest.fixture(scope="session")
def table_buckets() -> Iterator[Iterator[TableBucket]]:
    """Buckets of one server, each for one test."""
    with tempfile.TemporaryDirectory(prefix="rucola-objects-") as directory, object_store(Path(directory)) as buckets:
        yield buckets


@pytest.fixture
def table_bucket(table_buckets: Iterator[TableBucket]) -> TableBucket:
    """A bucket and a catalog of this test's own."""
    return next(table_buckets)


@pytest.fixture
def small_store(tmp_path: Path) -> SmallStore:
    """An empty store to append to."""
    return SmallStore(tmp_path / "store")
