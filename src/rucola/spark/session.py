"""Spark sessions with defaults for Rucola: local, on a master, or submitted by spark-submit.

The Java runtime, 17 or newer, is searched in JAVA_HOME, on PATH, then in directories of Linux distributions.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from rucola.errors import ConfigError, missing_extra

try:
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(missing_extra(error, "spark"), name=error.name) from None

from rucola.spark import class_archive

MIN_JAVA: Final = 17
SMALL_SIZE: Final = 128 * 1024 * 1024
"""Bytes of records below which a job runs without Spark, as in one Spark task (`log_splits.TARGET_SIZE`)."""
JVM_DIRECTORIES: Final = (Path("/usr/lib/jvm"), Path("/opt/java"), Path("/Library/Java/JavaVirtualMachines"))
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
_SHORT_LIVED: Final = ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m"]
"""Only the C1 compiler, because C2 costs more than it gains in short sessions. The code cache has the size for both: a
session of many queries fills the 48 MiB that a runtime reserves for C1 alone."""
_DAEMON: Final = "rucola.spark.worker_daemon"
_MASTER: Final = re.compile(
    r"local(\[[\d*]+(, *\d+)?\])?|local-cluster\[.+\]|spark://[^\s,]+:\d+(,[^\s,]+:\d+)*|k8s://\S+|yarn"
)
_LOCAL_MASTER: Final = re.compile(r"local|spark://(localhost|127\.0\.0\.1|\[::1\]):\d+$")
"""Masters whose executors run on this machine, so that the loopback address suffices."""
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
    """Return the session of this process, created if there is none.

    The session runs on `cores` local cores, or on `master`; under spark-submit only SQL settings are applied. Nothing
    listens beyond the loopback address unless the master is remote. Remote workers run the interpreter at the path of
    this one, or PYSPARK_PYTHON. `configuration`, in Spark's names, overrides all of this.

    With `is_short` the runtime starts faster, but is slower in the long run. Ctrl-C is left to a program that handles
    it; otherwise Spark cancels its jobs and raises KeyboardInterrupt. Raises ConfigError if there is no suitable Java
    runtime, or if the master is invalid or unreachable.
    """
    if master is not None and _MASTER.fullmatch(master) is None:
        raise ConfigError(
            f"{master!r} is not a Spark master; give local[4], spark://host:7077, yarn or k8s://address", subject=master
        )
    is_submitted = _SUBMITTED in os.environ
    if is_submitted and master is not None:
        raise ConfigError(f"spark-submit has already selected the master; leave out the master {master}")
    if master is not None:
        _check_reachable(master)
    master = master or f"local[{cores}]"
    is_local = _LOCAL_MASTER.match(master) is not None
    runtime_options = [f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"] + _SHORT_LIVED * is_short
    if not is_submitted and SparkSession.getActiveSession() is None:
        home = java_home()
        _set_environment(home, is_local=is_local)
        # An archive is for one class path.
        if "spark.driver.extraClassPath" not in (configuration or {}):
            runtime_options += class_archive.java_options(home)

    settings: dict[str, Any] = _settings(runtime_options, is_local=is_local)
    if is_submitted:
        settings = {name: value for name, value in settings.items() if name.startswith("spark.sql.")}
    else:
        settings["spark.master"] = master
    settings |= {"spark.app.name": app_name, **(configuration or {})}
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        # A new context sets its own handler of Ctrl-C, seconds before the session exists.
        SparkContext.getOrCreate(SparkConf().setAll(list(settings.items())))
        if interrupt is not signal.default_int_handler and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)
        return SparkSession.builder.config(map=settings).getOrCreate()
    except Py4JJavaError as error:
        why = str(error.java_exception.getMessage()).splitlines()[0]
        raise ConfigError(f"Spark could not start on {master}: {why}") from error


def _settings(runtime_options: Sequence[str], *, is_local: bool) -> dict[str, str]:
    loopback = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    return {
        **(loopback if is_local else {}),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # A task meets many topics and days. With a writer open for each, rows need not be sorted by partition first.
        "spark.sql.maxConcurrentOutputFileWriters": "64",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.adaptive.enabled": "true",
        "spark.log.level": "ERROR",
        **({"spark.python.daemon.module": _DAEMON} if is_local else {}),
        "spark.driver.extraJavaOptions": " ".join(f'"{option}"' for option in runtime_options),
    }


def _set_environment(home: Path, *, is_local: bool) -> None:
    os.environ["JAVA_HOME"] = str(home)
    # The processes that look for data sources and plan reads find this interpreter only by these variables.
    if is_local or "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if is_local:
        # Spares Spark a look-up of the machine's name.
        os.environ["SPARK_LOCAL_IP"] = os.environ["SPARK_LOCAL_HOSTNAME"] = "127.0.0.1"


def _check_reachable(master: str) -> None:
    """Raise ConfigError if no standalone master accepts a connection; Spark itself would retry for a minute."""
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
    raise ConfigError(f"no Spark master answers at {master}: {why}", subject=master)


class LazySession:
    """A session that is created when a job first needs it, since a Java runtime needs seconds to start.

    Jobs over less than `SMALL_SIZE` bytes of messages run in this process. `use_spark` overrides the size: True runs
    every job in Spark, False none. With a `master`, or under spark-submit, every job with anything to read runs in
    Spark. Raises ConfigError for a master together with `use_spark=False`.
    """

    def __init__(
        self,
        app_name: str,
        master: str | None = None,
        *,
        use_spark: bool | None = None,
    ) -> None:
        if master is not None and use_spark is False:
            raise ConfigError(f"a job without Spark has no master; leave out the master {master}, or use Spark")
        self._app_name = app_name
        self._master = master
        self._use_spark = use_spark
        self.session: SparkSession | None = None
        self.is_starting = False

    def is_needed(self, size: Callable[[], int]) -> bool:
        """Return whether a job over messages of `size()` bytes runs in Spark."""
        if self._use_spark is not None:
            return self._use_spark
        least = 1 if self._master is not None or _SUBMITTED in os.environ else SMALL_SIZE
        return size() >= least

    def get(self) -> SparkSession:
        """Return the session, creating it on the first call. Raises as `local_session` does."""
        if self.session is None:
            self.is_starting = True
            try:
                self.session = local_session(self._app_name, master=self._master)
            finally:
                self.is_starting = False
        return self.session


AnySession: TypeAlias = SparkSession | LazySession
"""The session argument of a job: a session in which it runs, or one that is created if needed."""


def runs_in_spark(spark: AnySession, size: Callable[[], int]) -> bool:
    """Return whether a job over `size()` bytes of messages runs in Spark, not in-process."""
    return not isinstance(spark, LazySession) or spark.is_needed(size)


def resolve_session(spark: AnySession) -> SparkSession:
    """Return the session, creating a lazy one."""
    return spark.get() if isinstance(spark, LazySession) else spark


def java_home() -> Path:
    """Return the home of a Java runtime that Spark can use. Raises ConfigError if there is none."""
    seen = []
    for home in _candidates():
        version = java_version(home)
        if version is not None and version >= MIN_JAVA:
            return home
        if version is not None:
            seen.append(f"Java {version} in {home}")
    found = f" (found {', '.join(seen)})" if seen else ""
    raise ConfigError(
        f"Spark needs Java {MIN_JAVA} or newer and none was found{found}; install one, on Debian with "
        f"`apt-get install openjdk-17-jre-headless`, or set JAVA_HOME"
    )


def java_version(home: Path) -> int | None:
    """Return the major version of the Java runtime in `home`, None if there is none."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        release = (home / "release").read_text(errors="replace")
    except OSError:
        return None
    # Up to Java 8 the major version is the second number: 1.8.0_392.
    version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    return int(version[1]) if version else None


def _candidates() -> Iterator[Path]:
    """Yield the homes of Java runtimes in the order of preference."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if java := shutil.which("java"):
        yield Path(java).resolve().parent.parent
    for directory in JVM_DIRECTORIES:
        if directory.is_dir():
            homes = [
                home / "Contents" / "Home" if (home / "Contents").is_dir() else home for home in directory.iterdir()
            ]
            yield from sorted(homes, key=lambda home: (java_version(home) or 0, home))
