"""The process that forks Spark's Python workers: `pyspark.daemon`, silent about rows that nothing reads any more.

Once `limit()` or `show()` has enough rows, Spark closes the connection to the workers that still send some. In
`pyspark.daemon` such a worker ends with a traceback on stderr (BrokenPipeError), though nothing is wrong; here it just
ends. Every other error is reported as before.

`local_session` sets it as `spark.python.daemon.module`; any other session may do the same if its workers have this
package.
"""

from __future__ import annotations

from socket import socket

from pyspark import daemon

_serve = daemon.worker


def worker(sock: socket, authenticated: bool) -> int:
    """Serve one task, and return the exit code of the process."""
    try:
        return _serve(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
