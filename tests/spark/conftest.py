"""One Spark session for all tests of the room, and stores to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rucola.spark.session import local_session
from spark.small_store import SmallStore


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session("tests", cores=2)
    yield session
    session.stop()


@pytest.fixture
def small_store(tmp_path: Path) -> SmallStore:
    """An empty store to append to."""
    return SmallStore(tmp_path / "store")
