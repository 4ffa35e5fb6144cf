"""Filter a topic by tags, or by SQL92 over properties, for which brokers other than `rucola standalone` need
enablePropertyFilter=true.

It prints:

    by tags: ['pasta', 'pizza']
    by SQL92: pizza
"""

from rucola.client.sync import Message, Producer, PushConsumer

with Producer("shop") as producer:
    for dish, tag, price in (("pizza", "food", 9), ("pasta", "food", 7), ("wine", "drinks", 12)):
        producer.send(Message("FilteredOrders", dish.encode(), tags=tag, properties={"price": str(price)}))

by_tags = PushConsumer("filtered-kitchen")
by_tags.subscribe("FilteredOrders", "food || desserts")
with by_tags:
    dishes = []
    for message in by_tags:
        dishes.append(message.body.decode())
        if len(dishes) == 2:
            by_tags.ack(message)
            break
print("by tags:", sorted(dishes))

by_expression = PushConsumer("filtered-accounting")
by_expression.subscribe("FilteredOrders", "price > 8 AND TAGS = 'food'", "SQL92")
with by_expression:
    for message in by_expression:
        print("by SQL92:", message.body.decode())
        by_expression.ack(message)
        break
