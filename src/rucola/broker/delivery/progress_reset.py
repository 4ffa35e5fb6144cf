"""Progress reset: a broker forgets what it has delivered when its log is cut off.

A master that returns as slave may have delivered messages by records that no other broker has. When these are cut off
(`rucola.store.diverged_tail`), the offsets of delayed delivery, the checkpoint of timer messages and the offsets of
half messages still count them. If it became master again before the offsets of its new master apply, the messages would
be lost. How far each number is valid is not known, so all of them begin again.

A master that begins so looks up in the index what was due before the end of its log, and delivers what it does not find
by its unique key (`broker.delivery.due_delivery`). Half messages that a check had put back are checked again.
"""

from __future__ import annotations

from pathlib import Path

from rucola import slices
from rucola.broker.delivery.delay import DELAY_OFFSET_FILE, write_delay_offsets
from rucola.broker.delivery.timer import TIMER_FILE, TimerCheckpoint, write_checkpoint
from rucola.broker.tables.offsets import CONSUMER_OFFSET_FILE, ConsumerOffsetTable
from rucola.store.config_files import read_config
from rucola.store.features import LMQ_OFFSET_FILE


def reset_progress(config_directory: Path) -> None:
    """Reset the progress in the files of a stopped broker; durable on return.

    Creates no file. Raises OSError, and StoreCorrupt for a file that cannot be parsed.
    """
    delayed, timers = config_directory / DELAY_OFFSET_FILE, config_directory / TIMER_FILE
    # An empty table, and no deletion: a missing file is read from its .bak.
    if read_config(delayed) is not None:
        write_delay_offsets(delayed, {}, 0)
    if read_config(timers) is not None:
        write_checkpoint(timers, TimerCheckpoint(0, 0, 0), 0)
    for name in (CONSUMER_OFFSET_FILE, LMQ_OFFSET_FILE):
        offsets = ConsumerOffsetTable(config_directory / name)
        offsets.load(None)
        offsets.reset_transactions()
        slices.run(offsets.snapshot_steps())()
