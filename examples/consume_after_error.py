"""Consume by iteration, with a body that fails: the next iteration begins with the same message.

It prints:

    pizza: the oven is cold
    pizza: cooked
"""

from rucola.client.sync import Message, Producer, PushConsumer

with Producer("shop") as producer:
    producer.send(Message("Orders", b"pizza"))

oven_is_hot = False
consumer = PushConsumer("kitchen")
consumer.subscribe("Orders")


def cook(dish: str) -> None:
    if not oven_is_hot:
        raise RuntimeError("the oven is cold")
    print(f"{dish}: cooked")


with consumer:
    for _ in range(2):
        try:
            for message in consumer:
                cook(message.body.decode())
                consumer.ack(message)
                break
        except RuntimeError as error:
            # The message was in hand and is not done. It comes first in the next iteration, or goes to another member
            # of the group if this consumer closes. `consumer.reconsume_later(message)` would let it come again later.
            print(f"{message.body.decode()}: {error}")
            oven_is_hot = True
