"""Read queues at chosen offsets: the beginning, an offset, or the offset at a time.

It prints:

    5 messages, 2 since then
"""

import time

from rucola.client.sync import Message, Producer, PullConsumer


def read(consumer: PullConsumer, since_ms: int) -> int:
    """Return the number of messages in the topic that were stored at this time or later."""
    count = 0
    for queue in consumer.queues("PulledOrders"):
        offset = consumer.search_offset(queue, since_ms)
        while offset < consumer.max_offset(queue):
            result = consumer.pull(queue, offset)
            # The search may return an earlier message, so check the store times.
            count += sum(message.store_timestamp >= since_ms for message in result.messages)
            offset = result.next_begin_offset
        consumer.commit(queue, offset)  # for a group that continues there
    return count


begin_ms = time.time_ns() // 1_000_000
with Producer("shop") as producer:
    for _ in range(3):
        producer.send(Message("PulledOrders", b"before"))
    time.sleep(0.05)
    then_ms = time.time_ns() // 1_000_000
    for _ in range(2):
        producer.send(Message("PulledOrders", b"after"))

with PullConsumer("pulling-auditor") as consumer:
    print(f"{read(consumer, begin_ms)} messages, {read(consumer, then_ms)} since then")
