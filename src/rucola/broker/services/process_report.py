"""What the process of a broker does now: the stacks of its threads and tasks, for people who search a fault."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import traceback

MAX_SIZE = 256 * 1024
MAX_TASKS = 500
MAX_FRAMES = 12


def process_report() -> str:
    """Return the stacks, without values of variables; at most MAX_SIZE characters."""
    text = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the only way to them
        text.write(f"thread {names.get(ident, ident)}\n")
        text.writelines(traceback.format_stack(frame, MAX_FRAMES))
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    text.write(f"{len(tasks)} tasks\n")
    for task in tasks[:MAX_TASKS]:
        task.print_stack(limit=MAX_FRAMES, file=text)
    return text.getvalue()[:MAX_SIZE]
