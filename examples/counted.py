"""Read the statistics of clients by topic, and export them to Prometheus.

It prints:

    sent 3, failed 0, in flight 0
    consumed 3, failed 1
    rocketmq_client_consume_msg_total 3
"""

from itertools import islice

from prometheus_client import CollectorRegistry

from rucola.client.metrics import ClientCollector
from rucola.client.sync import Message, Producer, PushConsumer

with Producer("shop") as producer, PushConsumer("counted-kitchen") as consumer:
    for dish in (b"pizza", b"pasta", b"risotto"):
        producer.send(Message("CountedOrders", dish))
    sent = producer.stats()["CountedOrders"]
    print(f"sent {sent.sent}, failed {sent.failed}, in flight {sent.in_flight}")

    consumer.subscribe("CountedOrders")
    for message in islice(consumer, 4):  # one of them is delivered twice
        if message.body == b"pasta" and not message.reconsume_times:
            consumer.reconsume_later(message, delay_level=1)  # after a second
        else:
            consumer.ack(message)
    topics = consumer.stats().values()  # retries are counted under %RETRY%counted-kitchen
    print(f"consumed {sum(of.consumed for of in topics)}, failed {sum(of.failed for of in topics)}")

    registry = CollectorRegistry()  # a program that serves metrics registers with prometheus_client.REGISTRY
    registry.register(ClientCollector(producer, consumer))
    name = "rocketmq_client_consume_msg_total"
    done = [sample for family in registry.collect() for sample in family.samples if sample.name == name]
    print(name, sum(sample.value for sample in done if sample.labels["status"] == "OK"))
