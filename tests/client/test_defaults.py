"""What the Python client does unless it is told otherwise is what Apache's client of 4.9.8 does."""

from __future__ import annotations

import pytest

from rucola.client import instance
from rucola.client.consumer import assignment, fetcher, push_consumer, queue_locks
from rucola.client.consumer.options import ConsumeFromWhere, ConsumeOptions, MessageModel
from rucola.client.consumer.process_queue import PullLimits
from rucola.client.producer import producer
from rucola.client.producer.options import ProducerOptions
from rucola.domain.allocation import average

OPTIONS = ConsumeOptions()


@pytest.mark.parametrize(
    ("name", "ours", "apaches"),
    [
        ("heartbeatBrokerInterval", instance.HEARTBEAT_INTERVAL_MS, 30_000),
        ("pollNameServerInterval", instance.ROUTE_INTERVAL_MS, 30_000),
        ("persistConsumerOffsetInterval", push_consumer.PERSIST_INTERVAL_MS, 5_000),
        ("waitInterval of RebalanceService", assignment.REBALANCE_INTERVAL_MS, 20_000),
        ("REBALANCE_LOCK_INTERVAL", queue_locks.LOCK_INTERVAL_MS, 20_000),
        ("REBALANCE_LOCK_MAX_LIVE_TIME", queue_locks.LOCK_LIFE_MS, 30_000),
        ("BROKER_SUSPEND_MAX_TIME_MILLIS", fetcher.SUSPEND_MS, 15_000),
        ("sendMsgTimeout", producer.SEND_TIMEOUT_MS, 3_000),
        ("retryTimesWhenSendFailed", ProducerOptions().retry_times, 2),
        ("compressMsgBodyOverHowmuch", ProducerOptions().compress_threshold, 4096),
        ("maxMessageSize", ProducerOptions().max_message_size, 4 << 20),
        ("consumeThreadMax", OPTIONS.concurrency, 20),
        ("consumeTimeout", OPTIONS.consume_timeout_ms, 15 * 60_000),
        ("suspendCurrentQueueTimeMillis", OPTIONS.suspend_current_queue_ms, 1_000),
        ("pullBatchSize", OPTIONS.pull_batch_size, 32),
        ("consumeFromWhere", OPTIONS.consume_from, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET),
        ("messageModel", OPTIONS.message_model, MessageModel.CLUSTERING),
        ("allocateMessageQueueStrategy", OPTIONS.strategy, average),
        ("pullThreshold...ForQueue, maxSpan", OPTIONS.limits, PullLimits(count=1000, size=100 << 20, span=2000)),
    ],
)  # fmt: skip
def test_defaults_equal_apaches(name: str, ours: object, apaches: object) -> None:
    assert ours == apaches, name
