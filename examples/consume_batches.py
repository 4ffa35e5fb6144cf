"""Consume several messages at a time, say to write them to a database in one go.

It prints:

    100 rows
"""

import queue

from rucola.client import MessageExt, ReconsumeLater
from rucola.client.sync import Message, Producer, PushConsumer

with Producer("shop") as producer:
    producer.send_many(Message("Clicks", str(number).encode()) for number in range(100))

rows: "queue.Queue[int]" = queue.Queue()


def write(messages: list[MessageExt]) -> None:
    """A plain function runs in a thread. The messages are of one queue, in its order."""
    for index, message in enumerate(messages):
        if not message.body:
            raise ReconsumeLater(ack_index=index - 1)  # those before are done, this one and the rest come again
        rows.put(int(message.body))


consumer = PushConsumer("statistics")
consumer.subscribe("Clicks")
consumer.listen_to_batches(write, max_count=32)
with consumer:
    print(len({rows.get(timeout=20) for _ in range(100)}), "rows")
