"""Send messages of one topic in one request: stored together in one queue, or not at all.

It prints:

    3 stored at offsets [0, 1, 2]
"""

from rucola.client.sync import Message, Producer

with Producer("shop") as producer:
    results = producer.send_batch(Message("Orders", body) for body in (b"pizza", b"pasta", b"tiramisu"))
    print(f"{len(results)} stored at offsets {[result.queue_offset for result in results]}")
