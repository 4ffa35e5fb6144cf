"""Filter a topic by tags, or by SQL92 over properties, for which brokers need enablePropertyFilter=true.

It prints:

    by tags: ['pasta', 'pizza']
    by SQL92: pizza
"""

from itertools import islice

from rucola.client.sync import Message, Producer, PushConsumer

with Producer("shop") as producer:
    for dish, tag, price in (("pizza", "food", 9), ("pasta", "food", 7), ("wine", "drinks", 12)):
        producer.send(Message("Orders", dish.encode(), tags=tag, properties={"price": str(price)}))

by_tags = PushConsumer("kitchen")
by_tags.subscribe("Orders", "food || desserts")
with by_tags:
    print("by tags:", sorted(message.body.decode() for message in islice(by_tags, 2)))

by_expression = PushConsumer("accounting")
by_expression.subscribe("Orders", "price > 8 AND TAGS = 'food'", "SQL92")
with by_expression:
    print("by SQL92:", next(iter(by_expression)).body.decode())
