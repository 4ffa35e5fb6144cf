"""Send and receive objects instead of bytes: bodies are JSON of a dataclass.

It prints:

    Order(dish='pizza', price=9)
"""

from dataclasses import dataclass

from rucola.client.sync import Producer, PushConsumer


@dataclass
class Order:
    dish: str
    price: int


with Producer("shop", value=Order) as producer:
    producer.send(producer.message("ValueOrders", Order("pizza", 9), keys="order-1"))

consumer = PushConsumer("value-kitchen", value=Order)  # a body that is no Order is retried, and then a dead letter
consumer.subscribe("ValueOrders")
with consumer:
    for message in consumer:
        print(message.value)
        consumer.ack(message)
        break
