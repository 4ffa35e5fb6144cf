"""Standard error of the Java runtime, without warnings that no option of the runtime silences."""

from __future__ import annotations

import os
import re
import threading
from typing import Any, Final

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

_NOISE: Final = re.compile(
    rb"WARNING: Using incubator modules: jdk\.incubator\.vector"
    rb"|WARNING: .*(sun\.misc\.Unsafe|restricted method|--enable-native-access|terminally deprecated).*"
)
_STDERR: Final = 2
_LAST_LINES_S: Final = 5
"""Maximum wait for the last lines of a runtime that did not start."""


def launch(conf: SparkConf) -> Any:
    """Start a Java runtime and return its gateway. Raises PySparkRuntimeError if it does not start."""
    reader, writer = os.pipe()
    lines = threading.Thread(target=_pass_on, args=(reader,), name="output of the Java runtime", daemon=True)
    lines.start()
    try:
        gateway = launch_gateway(conf, {"stderr": writer})  # type: ignore[no-untyped-call]
    except BaseException:
        os.close(writer)
        lines.join(_LAST_LINES_S)
        raise
    os.close(writer)
    return gateway


def _pass_on(reader: int) -> None:
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            if not _NOISE.fullmatch(line.strip()):
                os.write(_STDERR, line)
