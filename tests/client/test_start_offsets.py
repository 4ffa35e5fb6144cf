"""Where a new group starts, as docs/client.md has it: by the age of the queue, and by `consume_from`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rucola.client import ConsumeFromWhere, MessageQueue, sync
from rucola.testing.rocketmq import RocketMQ
from support.documents import Document
from support.waiting import wait_until

LAST, FIRST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
TIME = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
BEFORE = [b"%d" % number for number in range(10)]
"""What was sent before the group existed."""


def received(rocketmq: RocketMQ, group: str, consume_from: ConsumeFromWhere, consume_timestamp_ms: int) -> int:
    """Let a new group consume the topic to its end; return how many of the messages before it received."""
    consumer = sync.PushConsumer(
        group, rocketmq.namesrv, consume_from=consume_from, consume_timestamp_ms=consume_timestamp_ms
    )
    consumer.subscribe("Orders")
    with consumer:
        wait_until(lambda: MessageQueue("Orders", "broker-a", 0) in consumer.queues)
        rocketmq.send("Orders", b"after", queue_id=0)
        bodies = []
        for message in consumer:
            bodies.append(message.body)
            if message.body == b"after":
                break
    return len(set(bodies) & set(BEFORE))


def test_a_group_that_commits_the_ends_first_starts_there(rocketmq: RocketMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_NAMESRV", rocketmq.namesrv)
    rocketmq.send("Orders", BEFORE[0], queue_id=0)
    exec(Document.read("docs/client.md").sections()["Consuming"].texts("python")[-1])
    assert received(rocketmq, "billing", LAST, 0) == 0


@pytest.mark.parametrize(("percent", "at_last", "at_time"), [(40, 10, 10), (0, 0, 0)], ids=["young", "old"])
def test_a_new_group_starts_where_the_page_says(tmp_path: Path, percent: int, at_last: int, at_time: int) -> None:
    with RocketMQ(tmp_path, {"accessMessageInMemoryMaxRatio": percent}) as rocketmq:
        rocketmq.create_topic("Orders", queues=1)
        for body in BEFORE:
            rocketmq.send("Orders", body)
        now_ms = time.time_ns() // 1_000_000 + 1000
        assert received(rocketmq, "first", FIRST, now_ms) == 10
        assert received(rocketmq, "last", LAST, now_ms) == at_last
        assert received(rocketmq, "time", TIME, now_ms) == at_time
