"""Errors of workers, as they come home: Spark wraps what a task raised into errors of its own, traceback and all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from rucola import errors

_OURS: Final = re.compile(r"rucola\.errors\.(\w+): (.*)")
_SPARKS: Final = re.compile(r"SparkException: (?!Job aborted)(.*)")


@contextmanager
def plainly() -> Iterator[None]:
    """Around work of Spark: what fails there is raised as the error of ours that is inside, else as a StoreError."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise _plain(str(error)) from error


def _plain(text: str) -> errors.MQError:
    ours = _OURS.search(text)
    if ours is None:
        sparks = _SPARKS.search(text)
        return errors.StoreError(sparks[1].strip() if sparks else text)
    kind = getattr(errors, ours[1], errors.MQError)
    # Some are made of more than a sentence; the nearest class that is not will do.
    takes_sentence = next(each for each in kind.__mro__ if "__init__" not in vars(each) or each is errors.MQError)
    raised: errors.MQError = takes_sentence(ours[2].strip())
    return raised
