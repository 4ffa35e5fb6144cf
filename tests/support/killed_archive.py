"""Archive runs into an object store, in processes that end themselves by SIGKILL at a numbered step.

There is a step before each thing that others can see: a request that changes the catalog, and an object that is there
from then on, or no longer. The processes are forked from a warm one (multiprocessing's forkserver).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyiceberg.catalog
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.utils.config import Config
from requests import Session

from rucola.spark.archive import Archive
from rucola.spark.jobs import archive
from rucola.spark.lake.storage import ObjectStore
from rucola.spark.session import LazySession


class _Steps:
    def __init__(self, last: int) -> None:
        self._left = last

    def reach(self) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, owner: type, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def with_step(*arguments: Any, **named: Any) -> Any:
            if getattr(arguments[-1], "method", "") not in ("GET", "HEAD"):
                self.reach()
            return function(*arguments, **named)

        setattr(owner, name, with_step)

    def before_end(self, owner: type, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        @contextmanager
        def with_step(*arguments: Any, **named: Any) -> Any:
            with function(*arguments, **named) as value:
                yield value
                self.reach()

        setattr(owner, name, with_step)


def archive_and_die(step: int, environment: Mapping[str, str], store: Path, lake: str, catalog: str) -> bool:
    """Archive in a process that dies at a step; False if the run has fewer steps, and the process has ended itself."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_archive, args=(step, environment, store, lake, catalog))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def _archive(step: int, environment: Mapping[str, str], store: Path, lake: str, catalog: str) -> None:
    os.environ.update(environment)
    pyiceberg.catalog._ENV_CONFIG = Config()  # as a new process reads it
    steps = _Steps(step)
    steps.before(Session, "send")
    steps.before(PyArrowFile, "create")
    steps.before(ObjectStore, "delete")
    steps.before_end(ObjectStore, "writing")
    archive.run(LazySession("killed", use_spark=False), store, Archive(lake, catalog))
