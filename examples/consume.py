"""Consume by iteration: requesting the next message acknowledges the one before.

It prints:

    cooking ['pasta', 'pizza', 'risotto']
"""

from rucola.client.sync import Message, Producer, PushConsumer

with Producer("shop") as producer:
    for dish in ("pizza", "pasta", "risotto"):
        producer.send(Message("ConsumeOrders", dish.encode()))

cooked = []
consumer = PushConsumer("consume-kitchen")
consumer.subscribe("ConsumeOrders")
with consumer:
    for message in consumer:  # endless; `consumer.messages(idle_timeout_ms=...)` ends when no message arrives
        cooked.append(message.body.decode())
        if len(cooked) == 3:
            consumer.ack(message)  # otherwise the loop would leave it unacknowledged, to be delivered again
            break
print("cooking", sorted(cooked))
