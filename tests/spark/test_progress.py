"""What a person sees of a job while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rucola.spark.jobs.progress import report_tasks
from rucola.spark.session import LazySession


@pytest.mark.spark
def test_tasks_are_counted_while_they_run(spark: SparkSession, tmp_path: Path) -> None:
    """One of two tasks waits until the other has been told of."""
    told: list[tuple[int, int]] = []
    one_is_done = str(tmp_path / "one_is_done")

    def work(numbers: Iterator[int]) -> Iterator[int]:
        waits, deadline = 1 in numbers, time.monotonic() + 60
        while waits and not Path(one_is_done).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return iter([1])

    def progress(done: int, total: int) -> None:
        told.append((done, total))
        if done:
            Path(one_is_done).touch()

    session = LazySession("tests")
    session.get()
    with report_tasks(session, progress):
        assert spark.sparkContext.parallelize(range(2), 2).mapPartitions(work).count() == 2
    assert (1, 2) in told
    assert all(done <= total for done, total in told)
