"""Receive messages for a time, and acknowledge them one by one: more members than queues share the work.

It prints:

    first attempt: 3 messages
    second attempt: 1 message
"""

from rucola.client.sync import Message, Producer, SimpleConsumer

with Producer("shop") as producer:
    queue = producer.queues("ReceivedOrders")[0]
    for number in range(3):
        producer.send(Message("ReceivedOrders", b"order %d" % number), queue)

with SimpleConsumer("packing") as consumer:
    messages = consumer.receive("ReceivedOrders", invisible_ms=60_000)
    print(f"first attempt: {len(messages)} messages")
    failed, *done = messages
    consumer.ack(done)
    consumer.change_invisible(failed, 0)  # others may receive it at once, this member too
    (again,) = consumer.receive("ReceivedOrders")
    assert (again.body, again.reconsume_times) == (failed.body, 1)
    print("second attempt: 1 message")
    consumer.ack(again)
