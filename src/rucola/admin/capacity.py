"""CapacityAdmin: how much of a broker's resources its load takes, by the figures of docs/sizing.md.

    resource     used                                          limit
    core         processor time of its rates, in a second      one second: a broker uses one core
    disk         used part now                                 diskMaxUsedSpaceRatio
    retention    bytes of fileReservedTime at the rate         the part of the disk below diskMaxUsedSpaceRatio
    topics       topics                                        maxTopicNums
    groups       consumer groups                               maxSubscriptionGroupNums
    mappings     descriptors and mappings of ConsumeQueues     LimitNOFILE, vm.max_map_count
    recovery     seconds after a crash, of one log file        RECOVERY_LIMIT_S

Rates are those of the last ten minutes, so a quiet hour says little about a busy one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from rucola.admin.brokers import BrokerAdmin
from rucola.admin.doctor import DoctorAdmin
from rucola.admin.groups import GroupAdmin
from rucola.admin.topics import TopicAdmin

SEND_US: Final = 20.0
"""Processor time of a message of 1 KB that is sent alone, in microseconds."""
DELIVER_US: Final = 15.0
"""Of one that a group gets as it arrives."""
DERIVED_SIZE: Final = 20 + 24
"""Bytes in ConsumeQueue and index that a message with one key takes besides its record."""
RECOVERY_BYTES_PER_S: Final = 120e6
"""Bytes of the log that are read in a second after a crash, of a plain disk; the processor needs less time."""
RECOVERY_LIMIT_S: Final = 300.0
"""Time after which supervisors and people lose patience."""
_UNITS: Final = {"B": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4, "PiB": 5, "EiB": 6}


@dataclass(slots=True)
class Usage:
    """A resource of a broker."""

    resource: str
    used: float
    limit: float
    unit: str

    @property
    def share(self) -> float:
        return self.used / self.limit if self.limit else 0.0


class CapacityAdmin:
    def __init__(self, brokers: BrokerAdmin, topics: TopicAdmin, groups: GroupAdmin, doctor: DoctorAdmin) -> None:
        self._brokers = brokers
        self._topics = topics
        self._groups = groups
        self._doctor = doctor

    async def of_broker(self, address: str) -> list[Usage]:
        """Return the usage of each resource. BrokerError if the broker is Apache's."""
        stats, config = await self._brokers.runtime_stats(address), await self._brokers.config(address)
        mappings = (await self._doctor.diagnosis(address)).mappings_ratio
        puts, gets = (_longest_rate(stats[name]) for name in ("putTps", "getTransferedTps"))
        record_size = float(stats["putMessageAverageSize"]) or 1024.0
        total = _total_size(stats["commitLogDirCapacity"])
        allowed = int(config["diskMaxUsedSpaceRatio"]) / 100
        kept_s = int(config["fileReservedTime"]) * 3600
        file_size = int(config["mappedFileSizeCommitLog"])
        return [
            Usage("core", (puts * SEND_US + gets * DELIVER_US) / 1e6, 1.0, "s/s"),
            Usage("disk", float(stats["commitLogDiskRatio"]) * total, allowed * total, "bytes"),
            Usage("retention", puts * (record_size + DERIVED_SIZE) * kept_s, allowed * total, "bytes"),
            Usage("topics", len(await self._topics.configs(address)), int(config["maxTopicNums"]), ""),
            Usage("groups", len(await self._groups.configs(address)), int(config["maxSubscriptionGroupNums"]), ""),
            Usage("mappings", mappings, 1.0, "of all"),
            Usage("recovery", file_size / RECOVERY_BYTES_PER_S, RECOVERY_LIMIT_S, "s"),
        ]


def _longest_rate(rates: str) -> float:
    """Return the rate of the longest window, 0.2 of `1.5 0.7 0.2`."""
    return float((rates.split() or ["0"])[-1])


def _total_size(capacity: str) -> float:
    """Return the bytes of a disk in a text such as `Total : 72.5 GiB, Free : 3.1 GiB.`; 0 for another form."""
    found = re.search(r"Total : ([0-9.]+) (\w+)", capacity)
    return float(found[1]) * 1024 ** _UNITS.get(found[2], 0) if found else 0.0
