"""Errors on their way from Spark's Python processes to the user: one sentence, without a traceback around it.

Spark plans, reads and writes in Python processes of its own. An error there travels as text, the formatted traceback,
and comes home as the message of one of Spark's errors. Two places make a sentence of that again:

    sentences   in such a process: an error of ours sends home its sentence only, so that it is in the first lines of
                what Spark raises, in any session
    translate_spark_errors     around a job: what Spark raises becomes the error of ours that is inside

Errors that are not ours keep their traceback, since they are faults to be found.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isfunction
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from rucola import errors

_OURS: Final = re.compile(r"rucola\.errors\.(\w+): (.*)")
_SPARKS: Final = re.compile(r"SparkException: (?!Job aborted)(.*)")
_UNREADABLE: Final = re.compile(r"error while reading file (?:file:)?/*(/\S+\.parquet)")
"""Spark's error for a Parquet file. The only Parquet files that jobs read are those of lakes."""

_WORKER: Final = "PYTHON_WORKER_FACTORY_"
"""How variables begin that Spark sets in the environment of each of its Python processes."""
_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""The variable by which `pyspark.util.handle_worker_exception` formats an error without its traceback."""

T = TypeVar("T")


def without_tracebacks(kind: type[T]) -> type[T]:
    """Let errors of ours leave the public methods of a class that Spark calls as their sentence alone."""
    for name, method in list(vars(kind).items()):
        if isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _wrapped(method))
    return kind


def _wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def called(*arguments: Any, **named: Any) -> Any:
        with _as_sentence():
            result = method(*arguments, **named)
        return _each(result) if isinstance(result, Generator) else result

    return called


def _each(items: Iterable[T]) -> Iterator[T]:
    with _as_sentence():
        yield from items


@contextmanager
def _as_sentence() -> Iterator[None]:
    """Have an error of ours, or of the system, formatted without a traceback.

    A process of Spark's ends after an error, so the variable concerns this error only. In any other process, such as
    the user's, it would reach all processes that are started later, and is not set.
    """
    try:
        yield
    except (errors.MQError, OSError):
        if any(name.startswith(_WORKER) for name in os.environ):
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


@contextmanager
def translate_spark_errors() -> Iterator[None]:
    """Around work of Spark: raise the error of ours that is inside one of Spark's, else a StoreError.

    Also a decorator.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        ours = _ours(str(error))
        if ours is not None:
            raise ours from None  # Spark's error would be printed before ours, with its traceback
        raise errors.StoreError(_first_sentence(str(error))) from error


def _ours(text: str) -> errors.MQError | None:
    found = _OURS.search(text)
    if found is None:
        return None
    kind = getattr(errors, found[1], errors.MQError)
    # Some are made of more than a sentence; the nearest class that is not will do.
    takes_sentence = next(each for each in kind.__mro__ if "__init__" not in vars(each) or each is errors.MQError)
    raised: errors.MQError = takes_sentence(found[2].strip())
    return raised


def _first_sentence(text: str) -> str:
    """Return the sentence in the text of an error that is Spark's own."""
    unreadable = _UNREADABLE.search(text)
    if unreadable is not None:
        return (
            f"{unquote(unreadable[1])} cannot be read: the file is damaged; put it back from a copy, or see what "
            f"`rucola pipeline repair --lake DIR --dry-run` says of its lake"
        )
    sparks = _SPARKS.search(text)
    lines = text.splitlines()
    return sparks[1].strip() if sparks else lines[lines[0].startswith("An error occurred while calling")].lstrip(": ")
