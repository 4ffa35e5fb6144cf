"""Consume several messages at a time, for example to write them to a database together.

It prints:

    100 rows
"""

import queue

from rucola.client import MessageExt, ReconsumeLater
from rucola.client.sync import Message, Producer, PushConsumer

with Producer("shop") as producer:
    producer.send_many(Message("BatchClicks", str(number).encode()) for number in range(100))

rows: "queue.Queue[int]" = queue.Queue()


def write(messages: list[MessageExt]) -> None:
    """Plain functions run in a thread. The messages belong to one queue and are in its order."""
    for index, message in enumerate(messages):
        if not message.body:
            raise ReconsumeLater(ack_index=index - 1)  # completes those before; this one and the rest are retried
        rows.put(int(message.body))


consumer = PushConsumer("batch-statistics")
consumer.subscribe("BatchClicks")
consumer.listen_to_batches(write, max_count=32)
with consumer:
    print(len({rows.get(timeout=20) for _ in range(100)}), "rows")
