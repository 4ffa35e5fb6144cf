"""Daemon of the Python workers: PySpark's own, with three changes.

PySpark is imported from the directory in which it is installed. Spark puts `pyspark.zip` first on the module path of
every worker. Python caches no bytecode for modules in a zip file, so each daemon and each worker compiles PySpark
again: 0.5 s of CPU for a daemon, against 0.1 s from compiled files.

A worker whose rows are no longer needed ends silently. Once `limit()` or `show()` has enough rows, Spark closes the
connection to the workers that still send some. In `pyspark.daemon` such a worker ends with a traceback on stderr
(BrokenPipeError), though nothing is wrong. Every other error is reported as before.

The modules that a worker's first task has imported are exempt from garbage collection.

A session names this module in the setting spark.python.daemon.module if its executors run the driver's interpreter, in
which the installed PySpark is the one of the zip file, and have this package.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from socket import socket


def directories_first(path: Sequence[str]) -> list[str]:
    """Return a module path with its zip files at the end."""
    return sorted(path, key=lambda entry: entry.endswith(".zip"))


def _freezing(worker: Callable[[socket, bool], int]) -> Callable[[socket, bool], int]:
    """Return a worker that exempts from collection what its first task has imported.

    PySpark collects garbage after every task, which takes 25 ms if it looks at all modules.
    """

    def run(connection: socket, authenticated: bool) -> int:
        code = worker(connection, authenticated)
        if not authenticated:
            gc.collect()
            gc.freeze()
        return code

    return run


if __name__ == "__main__":
    sys.path[:] = directories_first(sys.path)
    from pyspark import daemon

    serve = _freezing(daemon.worker)

    def worker(sock: socket, authenticated: bool) -> int:
        """Serve one task, and return the exit code of the process."""
        try:
            return serve(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return 1

    daemon.worker = worker
    daemon.manager()
