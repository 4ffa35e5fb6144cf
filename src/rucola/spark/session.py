"""A Spark session, on this machine or where a master is, with nothing to set up but a Java runtime; or the one that
spark-submit asks for.

Spark 4 runs on Java 17 or newer. The one in JAVA_HOME is taken, then the one on PATH, then the oldest fitting one
where Linux distributions put theirs; its version is read from the file `release` that every runtime carries.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from rucola.errors import ConfigError
from rucola.spark import class_archive

LEAST_JAVA: Final = 17
SMALL_SIZE: Final = 128 * 1024 * 1024
"""Bytes of records below which a job runs without Spark: what one task of Spark reads (`planning.TARGET_SIZE`)."""
_JVM_DIRECTORIES: Final = (Path("/usr/lib/jvm"), Path("/opt/java"), Path("/Library/Java/JavaVirtualMachines"))
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""What spark-submit leaves in the environment of the Python program that it starts."""
_SHORT: Final = ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m"]
"""Code is compiled by the quick compiler only; over a short life the thorough one costs more than it gains. The room
for code is that of both, since a session of many queries fills the 48 MiB that a runtime reserves for one of them."""
_DAEMON: Final = "rucola.spark.worker_daemon"
_MASTER: Final = re.compile(
    r"local(\[[\d*]+(, *\d+)?\])?|local-cluster\[.+\]|spark://[^\s,]+:\d+(,[^\s,]+:\d+)*|k8s://\S+|yarn"
)
_NEAR: Final = re.compile(r"local|spark://(localhost|127\.0\.0\.1|\[::1\]):\d+$")
"""Masters whose executors are on this machine, so that nothing has to be heard beyond it."""
_CONNECT_TIMEOUT_S: Final = 5
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")


def local_session(
    app_name: str = "rucola",
    cores: int | str = "*",
    configuration: Mapping[str, str] | None = None,
    *,
    master: str | None = None,
    is_short: bool = False,
) -> SparkSession:
    """Return the session of this process, made if there is none yet: on `cores` cores of this machine, or by `master`.

    Where spark-submit has started the process, its session is where that says, and only what concerns queries is set.
    Times are UTC, columns travel as Arrow, there is no web page, and nothing listens beyond the loopback address unless
    the master is beyond it. Workers elsewhere run the interpreter at the path of this one, or what PYSPARK_PYTHON says.
    A `configuration` of Spark's own names overrides any of this. A session that `is_short` is for seconds of work: the
    runtime starts and warms up at half the processor time, and is slower at what goes on for minutes. Raises
    ConfigError when no Java runtime fits, or the master is none.
    """
    if master is not None and _MASTER.fullmatch(master) is None:
        raise ConfigError(f"{master!r} is no master of Spark; give local[4], spark://host:7077, yarn or k8s://address")
    builder = SparkSession.builder.appName(app_name)
    is_submitted = _SUBMITTED in os.environ
    if is_submitted and master is not None:
        raise ConfigError(f"spark-submit has said which master to use; leave out the master {master}")
    if master is not None:
        _check_is_there(master)
    master = master or f"local[{cores}]"
    is_near = _NEAR.match(master) is not None
    if not is_submitted:
        builder = builder.master(master)
    runtime_options = [f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"] + _SHORT * is_short
    if not is_submitted and SparkSession.getActiveSession() is None:
        home = java_home()
        _set_environment(home, is_near=is_near)
        # A runtime that is there already has its archive, and an archive is for one class path.
        if SparkContext._gateway is None and "spark.driver.extraClassPath" not in (configuration or {}):
            runtime_options += class_archive.java_options(home)
    near = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    settings = {
        **(near if is_near else {}),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Tasks meet many topics and days; with a writer for each, rows need not be sorted by them first.
        "spark.sql.maxConcurrentOutputFileWriters": "64",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.adaptive.enabled": "true",
        "spark.log.level": "ERROR",
        **({"spark.python.daemon.module": _DAEMON} if is_near else {}),
        "spark.driver.extraJavaOptions": " ".join(f'"{option}"' for option in runtime_options),
        **(configuration or {}),
    }
    for name, value in settings.items():
        if not is_submitted or name.startswith("spark.sql.") or name in (configuration or {}):
            builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except Py4JJavaError as error:
        why = str(error.java_exception.getMessage()).splitlines()[0]
        raise ConfigError(f"Spark could not begin on {master}: {why}") from error


def _set_environment(home: Path, *, is_near: bool) -> None:
    """Tell the runtime that is about to start, and the processes it starts, which Java, Python and host to use."""
    os.environ["JAVA_HOME"] = str(home)
    # The processes that look for data sources and plan reads know no other way to this interpreter.
    if is_near or "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if is_near:
        # Spares Spark asking the name service who this machine is.
        os.environ["SPARK_LOCAL_IP"] = os.environ["SPARK_LOCAL_HOSTNAME"] = "127.0.0.1"


def _check_is_there(master: str) -> None:
    """Raise ConfigError where no standalone master answers; Spark goes on trying for a minute."""
    if not master.startswith("spark://"):
        return
    why: OSError | None = None
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
            return
        except OSError as error:
            why = error
    raise ConfigError(f"no master of Spark answers at {master}: {why}")


class LazySession:
    """A session that is made when a job first needs one, if it needs one at all.

    A runtime takes seconds to start. Before that a job validates its arguments and finds out whether there is anything
    to do. Jobs over less than `SMALL_SIZE` bytes of messages run in this process and need no session; `use_spark`
    overrides that: True asks for Spark, False for none. With a `master`, or under spark-submit, every job runs in Spark
    that has anything to read. Raises ConfigError for a master of a job that is to run without.
    """

    def __init__(self, app_name: str, master: str | None = None, *, use_spark: bool | None = None) -> None:
        if master is not None and use_spark is False:
            raise ConfigError(f"a job without Spark has no master; leave out the master {master}, or allow Spark")
        self._app_name = app_name
        self._master = master
        self._use_spark = use_spark
        self.session: SparkSession | None = None

    def is_needed(self, size: Callable[[], int]) -> bool:
        """Tell whether a job over messages of `size()` bytes runs in Spark."""
        if self._use_spark is not None:
            return self._use_spark
        least = 1 if self._master is not None or _SUBMITTED in os.environ else SMALL_SIZE
        return size() >= least

    def get(self) -> SparkSession:
        """Return the session; raises what `local_session` does."""
        if self.session is None:
            before = signal.getsignal(signal.SIGINT)
            self.session = local_session(self._app_name, master=self._master)
            # Spark takes the signal for itself, but who has said what is to come of it means that.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, _end if before is signal.default_int_handler else before)
        return self.session


def _end(number: int, _: object) -> None:
    """End the process at once, as jobs can be ended anywhere; the runtime goes when nobody holds its input.

    Any other way leads through the connection to it, where a call is waiting, and prints a hundred lines.
    """
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), b"\x1b[?25h\n")  # a progress bar has hidden the cursor
    os._exit(128 + number)


AnySession: TypeAlias = SparkSession | LazySession
"""What a job is given: a session, in which it runs, or one that is made if it is needed."""


def runs_in_spark(spark: AnySession, size: Callable[[], int]) -> bool:
    """Tell whether a job over messages of `size()` bytes runs in Spark; otherwise it runs in this process."""
    return not isinstance(spark, LazySession) or spark.is_needed(size)


def resolve_session(spark: AnySession) -> SparkSession:
    """Return the session itself."""
    return spark.get() if isinstance(spark, LazySession) else spark


def java_home() -> Path:
    """Return the home of a Java runtime that Spark can use. Raises ConfigError when there is none."""
    seen = []
    for home in _candidates():
        version = java_version(home)
        if version is not None and version >= LEAST_JAVA:
            return home
        if version is not None:
            seen.append(f"Java {version} in {home}")
    found = f" (there is {', '.join(seen)})" if seen else ""
    raise ConfigError(
        f"Spark needs Java {LEAST_JAVA} or newer and none was found{found}; install one, on Debian with "
        f"`apt-get install openjdk-17-jre-headless`, or set JAVA_HOME"
    )


def java_version(home: Path) -> int | None:
    """Return the major version of the runtime in `home`; None when there is none."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        release = (home / "release").read_text(errors="replace")
    except OSError:
        return None
    # Up to Java 8 the major version stands second: 1.8.0_392.
    version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    return int(version[1]) if version else None


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java"):
        yield Path(java).resolve().parent.parent
    for directory in _JVM_DIRECTORIES:
        if directory.is_dir():
            homes = [
                home / "Contents" / "Home" if (home / "Contents").is_dir() else home for home in directory.iterdir()
            ]
            yield from sorted(homes, key=lambda home: (java_version(home) or 0, home))
