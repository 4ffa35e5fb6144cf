"""Ctrl-C during a job: exit code 130 at once, without a traceback. Jobs can be interrupted anywhere.

An orderly exit would wait for a call to the Java runtime. The runtime ignores SIGINT, exits when its standard input
closes, and stops Spark's Python processes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def exit_now(number: int, _: object) -> None:
    """Exit at once with 128 + the number of the signal. A handler of SIGINT."""
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), b"\x1b[?25h\n")  # show the cursor, which a progress bar has hidden
    os._exit(128 + number)


@contextmanager
def exiting_on_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process during the block, unless the program handles SIGINT itself."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, exit_now)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
