"""Topics: their settings, and the versions of tables."""

from __future__ import annotations

import msgspec

MAX_NAME_LENGTH = 512
"""Characters of the name of a broker, cluster or registered topic; Apache's longest have 262."""

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4
SINGLE_TAG = "SINGLE_TAG"
MULTI_TAG = "MULTI_TAG"
TOPIC_FILTER_TYPES = (SINGLE_TAG, MULTI_TAG)
"""4.9.8 ignores the difference."""
TOPIC_FLAG_UNIT = 1
TOPIC_FLAG_UNIT_SUB = 2
"""Bits of `topic_sys_flag`: topics of deployments with several units."""


def perm_text(perm: int) -> str:
    """Return a permission as mqadmin prints it, such as `RW-`."""
    return f"{'R' if perm & PERM_READ else '-'}{'W' if perm & PERM_WRITE else '-'}{'X' if perm & PERM_INHERIT else '-'}"


class TopicConfig(msgspec.Struct, rename="camel", kw_only=True):
    # GET_BROKER_CONSUME_STATS can select ordered topics.
    order: bool = False
    # Sum of PERM_READ, PERM_WRITE and PERM_INHERIT.
    perm: int = PERM_READ | PERM_WRITE
    read_queue_nums: int = 16
    topic_filter_type: str = SINGLE_TAG
    topic_name: str
    topic_sys_flag: int = 0
    write_queue_nums: int = 16

    def __str__(self) -> str:
        """Return Java's text, which remarks contain."""
        return (
            f"TopicConfig [topicName={self.topic_name}, readQueueNums={self.read_queue_nums}, "
            f"writeQueueNums={self.write_queue_nums}, perm={perm_text(self.perm)}, "
            f"topicFilterType={self.topic_filter_type}, topicSysFlag={self.topic_sys_flag}, "
            f"order={'true' if self.order else 'false'}]"
        )


class DataVersion(msgspec.Struct, rename="camel", kw_only=True):
    """The version of a table: a counter, and the time of the last change (ms)."""

    counter: int = 0
    timestamp: int = 0

    def next(self, now_ms: int) -> DataVersion:
        return DataVersion(counter=self.counter + 1, timestamp=now_ms)

    @property
    def token(self) -> str:
        """The version as text, for `TableVersionHeader`."""
        return f"{self.timestamp}:{self.counter}"


class TopicConfigSerializeWrapper(msgspec.Struct, rename="camel", kw_only=True):
    """config/topics.json, response body 21, part of a registration."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = {}
