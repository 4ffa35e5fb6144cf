"""Error translation between Spark's Python processes and the user: one sentence, without a traceback.

Spark sends an error of its Python processes as a formatted traceback, in the message of one of its exceptions.
`without_tracebacks` formats Rucola errors there without a traceback; `translate_spark_errors`, around a job, raises the
Rucola error again. Other errors are programming errors and keep their traceback.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isfunction
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from rucola import errors
from rucola.spark.shared_files import not_shared

_RUCOLA_ERROR: Final = re.compile(r"(rucola(?:\.\w+)*\.errors)\.(\w+): (.*)")
_SPARK_ERROR: Final = re.compile(r"SparkException: (?!Job aborted|Exception thrown in awaitResult)(.*)")
_UNREADABLE: Final = re.compile(r"error while reading file (?:file:)?/*(/\S+\.parquet)")
"""Spark's error for a damaged Parquet file. Jobs read only Parquet files of lakes."""

_MISSING: Final = re.compile(r"error while reading file (?:file:)?/*(/\S+)\. File does not exist")
"""Spark's error for a file that the driver has planned to read and a task does not find."""

_WORKER: Final = "PYTHON_WORKER_FACTORY_"
_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"

T = TypeVar("T")


def without_tracebacks(kind: type[T]) -> type[T]:
    """Decorate a class that Spark calls: Rucola's errors leave its public methods without a traceback."""
    for name, method in list(vars(kind).items()):
        if isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _wrap(method))
    return kind


def _wrap(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def called(*arguments: Any, **named: Any) -> Any:
        with _hiding_traceback():
            result = method(*arguments, **named)
        return _iterate(result) if isinstance(result, Generator) else result

    return called


def _iterate(items: Iterable[T]) -> Iterator[T]:
    with _hiding_traceback():
        yield from items


@contextmanager
def _hiding_traceback() -> Iterator[None]:
    """Let PySpark format an MQError or OSError without a traceback, in its own process, which ends then."""
    try:
        yield
    except (errors.MQError, OSError):
        if any(name.startswith(_WORKER) for name in os.environ):
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


@contextmanager
def translate_spark_errors() -> Iterator[None]:
    """Raise the Rucola error inside one of Spark's errors, or else a StoreError. A decorator for jobs, too."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        original = _parse_error(str(error)) or _missing_file(str(error))
        if original is not None:
            raise original from None  # as a cause, Spark's error would be printed first, with its traceback
        raise errors.StoreError(_first_sentence(str(error))) from error


def _parse_error(text: str) -> errors.MQError | None:
    found = _RUCOLA_ERROR.search(text)
    if found is None:
        return None
    # The text has the module and name of the class, and its message up to the end of the line.
    kind = getattr(sys.modules.get(found[1]), found[2], errors.MQError)
    # Some classes need more arguments than a message; use the nearest base class that does not.
    with_message = next(each for each in kind.__mro__ if "__init__" not in vars(each) or each is errors.MQError)
    raised: errors.MQError = with_message(found[3].strip())
    return raised


def _missing_file(text: str) -> errors.MQError | None:
    found = _MISSING.search(text)
    if found is None:
        return None
    path = Path(unquote(found[1]))
    return not_shared(path.parent) if path.exists() else None


def _first_sentence(text: str) -> str:
    unreadable = _UNREADABLE.search(text)
    if unreadable is not None:
        return f"{unquote(unreadable[1])} cannot be read: the file is damaged; restore the file from a backup"
    sparks = _SPARK_ERROR.search(text)
    lines = text.splitlines()
    return sparks[1].strip() if sparks else lines[lines[0].startswith("An error occurred while calling")].lstrip(": ")
