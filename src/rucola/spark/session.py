"""A Spark session on this machine, with nothing to set up but a Java runtime; or the one that spark-submit asks for.

Spark 4 runs on Java 17 or newer. The one in JAVA_HOME is taken, then the one on PATH, then the oldest fitting one
where Linux distributions put theirs; its version is read from the file `release` that every runtime carries.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from rucola.errors import ConfigError

LEAST_JAVA: Final = 17
_JVM_DIRECTORIES: Final = (Path("/usr/lib/jvm"), Path("/opt/java"), Path("/Library/Java/JavaVirtualMachines"))
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""What spark-submit leaves in the environment of the Python program that it starts."""
_SHORT: Final = " -XX:TieredStopAtLevel=1"
"""Code is compiled by the quick compiler only. Over a short life the thorough one costs more than it gains."""
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")


def local_session(
    app_name: str = "rucola",
    cores: int | str = "*",
    configuration: Mapping[str, str] | None = None,
    *,
    is_short: bool = False,
) -> SparkSession:
    """Return the session of this process, made on `cores` cores of this machine if there is none yet.

    Where spark-submit has started the process, its session is where that says, and only what concerns queries is set.
    Times are UTC, columns travel as Arrow, there is no web page and nothing listens beyond the loopback address. A
    `configuration` of Spark's own names overrides any of this. A session that `is_short` is for seconds of work: the
    runtime starts and warms up at half the processor time, and is slower at what goes on for minutes. Raises
    ConfigError when no Java runtime fits.
    """
    builder = SparkSession.builder.appName(app_name)
    is_submitted = _SUBMITTED in os.environ
    if not is_submitted:
        builder = builder.master(f"local[{cores}]")
    if not is_submitted and SparkSession.getActiveSession() is None:
        os.environ["JAVA_HOME"] = str(java_home())
        # The processes that look for data sources and plan reads know no other way to this interpreter.
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        # Spares Spark asking the name service who this machine is.
        os.environ["SPARK_LOCAL_IP"] = os.environ["SPARK_LOCAL_HOSTNAME"] = "127.0.0.1"
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Tasks meet many topics and days; with a writer for each, rows need not be sorted by them first.
        "spark.sql.maxConcurrentOutputFileWriters": "64",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.adaptive.enabled": "true",
        "spark.log.level": "ERROR",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}{_SHORT * is_short}",
        **(configuration or {}),
    }
    for name, value in settings.items():
        if not is_submitted or name.startswith("spark.sql.") or name in (configuration or {}):
            builder = builder.config(name, value)
    return builder.getOrCreate()


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
