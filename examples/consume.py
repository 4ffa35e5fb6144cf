"""Consume by iteration: asking for the next message says that the one before is done.

It prints:

    cooking ['pasta', 'pizza', 'risotto']
"""

from rucola.client.sync import Message, Producer, PushConsumer

with Producer("shop") as producer:
    for dish in ("pizza", "pasta", "risotto"):
        producer.send(Message("Orders", dish.encode()))

cooked = []
consumer = PushConsumer("kitchen")
consumer.subscribe("Orders")
with consumer:
    for message in consumer:  # for ever; `consumer.messages(idle_timeout_ms=...)` ends when none has come for a while
        cooked.append(message.body.decode())
        if len(cooked) == 3:
            consumer.ack(message)  # a message in hand when the loop is left is not done, and would come again
            break
print("cooking", sorted(cooked))
