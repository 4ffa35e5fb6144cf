"""Read queues yourself, from where you like: from the beginning, from an offset, or from a time on.

It prints:

    5 messages, 2 since then
"""

import time

from rucola.client.sync import Message, Producer, PullConsumer


def read(consumer: PullConsumer, since_ms: int) -> int:
    """How many messages lie in the topic from this time on."""
    count = 0
    for queue in consumer.queues("Orders"):
        offset = consumer.search_offset(queue, since_ms)
        while offset < consumer.max_offset(queue):
            result = consumer.pull(queue, offset)
            # The search may end a message early, so look at the times.
            count += sum(message.store_timestamp >= since_ms for message in result.messages)
            offset = result.next_begin_offset
        consumer.commit(queue, offset)  # if the group wants to go on there
    return count


with Producer("shop") as producer:
    for _ in range(3):
        producer.send(Message("Orders", b"before"))
    time.sleep(0.05)
    then_ms = time.time_ns() // 1_000_000
    for _ in range(2):
        producer.send(Message("Orders", b"after"))

with PullConsumer("auditor") as consumer:
    print(f"{read(consumer, 0)} messages, {read(consumer, then_ms)} since then")
