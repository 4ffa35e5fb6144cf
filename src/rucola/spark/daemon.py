"""Daemon of the Python workers: PySpark's own, with two changes.

PySpark is imported from the directory in which it is installed. Spark puts `pyspark.zip` first on the module path of
every worker. Python caches no bytecode for modules in a zip file, so each daemon and each worker compiles PySpark
again: 0.5 s of CPU for a daemon, against 0.1 s from compiled files.

A worker whose rows are no longer needed ends silently. Once `limit()` or `show()` has enough rows, Spark closes the
connection to the workers that still send some. In `pyspark.daemon` such a worker ends with a traceback on stderr
(BrokenPipeError), though nothing is wrong. Every other error is reported as before.

A session names this module in the setting spark.python.daemon.module if its executors run the driver's interpreter, in
which the installed PySpark is the one of the zip file, and have this package.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from socket import socket


def directories_first(path: Sequence[str]) -> list[str]:
    """Return a module path with its zip files at the end."""
    return sorted(path, key=lambda entry: entry.endswith(".zip"))


if __name__ == "__main__":
    sys.path[:] = directories_first(sys.path)
    from pyspark import daemon

    serve = daemon.worker

    def worker(sock: socket, authenticated: bool) -> int:
        """Serve one task, and return the exit code of the process."""
        try:
            return serve(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return 1

    daemon.worker = worker
    daemon.manager()
