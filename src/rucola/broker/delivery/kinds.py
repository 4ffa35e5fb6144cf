"""The kinds of messages that a master delivers itself."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rucola.broker.delivery.delay import ScheduleMessageService, delay_offset_file
from rucola.broker.delivery.pop import PopConsumerService
from rucola.broker.delivery.timer import TimerMessageService, timer_file
from rucola.broker.delivery.transactions import TransactionalMessageService, reset_transactions


class DeliveryKinds(NamedTuple):
    delayed: ScheduleMessageService
    timers: TimerMessageService
    transactions: TransactionalMessageService
    pop: PopConsumerService


def reset_progress(config_directory: Path) -> None:
    """Reset the progress of a stopped broker whose log is cut off. Raises OSError and StoreCorrupt.

    A master that returns as slave may have delivered messages by records that no other broker has. After these are cut
    off (`rucola.store.diverged_tail`), its progress still counts them, and messages would be lost if it became master
    again. At 0, it looks up in the index what was due before the end of its log, and delivers what is missing. Half
    messages put back by a check are checked again.
    """
    delay_offset_file(config_directory).reset()
    timer_file(config_directory).reset()
    reset_transactions(config_directory)
