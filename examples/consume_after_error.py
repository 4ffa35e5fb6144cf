"""Consume by iteration after an exception: the next iteration begins with the same message.

It prints:

    pizza: the oven is cold
    pizza: cooked
"""

from rucola.client.sync import Message, Producer, PushConsumer

with Producer("shop") as producer:
    producer.send(Message("ErrorOrders", b"pizza"))

oven_is_hot = False
consumer = PushConsumer("error-kitchen")
consumer.subscribe("ErrorOrders")


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
            # The message is not acknowledged. The next iteration begins with it; if the consumer closes, another member
            # of the group gets it. `consumer.reconsume_later(message)` would have it redelivered after a delay.
            print(f"{message.body.decode()}: {error}")
            oven_is_hot = True
