"""Entry point of a server under a supervisor: `python -m rucola.cli.supervised PARENT PROGRAM COMMAND...`.

PROGRAM is `rucola`, or the path of another program, which replaces this process. On Linux the server gets SIGTERM if
its supervisor ends without stopping it: it would keep its ports and its store, and the next supervisor could not start
it.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

from rucola.system_calls import c_library

PR_SET_PDEATHSIG: Final = 1


def run() -> None:
    """Run the command line `PROGRAM COMMAND...`, and stop when the process `PARENT` ends."""
    parent = int(sys.argv.pop(1))
    if sys.platform == "linux":
        c_library().prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before the call
            sys.exit(f"the supervisor {parent} has ended")
    program = sys.argv.pop(1)
    if program != "rucola":
        os.execv(program, [program, *sys.argv[1:]])  # noqa: S606 - the death signal stays set over exec
    from rucola.cli.main import main  # imported after the call, since it takes most of the start

    main(prog_name="rucola")


if __name__ == "__main__":
    run()
