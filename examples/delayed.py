"""Deliver messages later, after one of the broker's delay levels or at any time.

It prints:

    later: after a while
    soon: at a time of its own
"""

from itertools import islice

from rucola.client.sync import Message, Producer, PushConsumer

with Producer("shop") as producer:
    after_a_while = Message("Reminders", b"after a while", tags="later")
    after_a_while.delay_level = 1  # the first of messageDelayLevel, a second unless the broker says otherwise
    producer.send(after_a_while)
    producer.send(Message("Reminders", b"at a time of its own", tags="soon", properties={"TIMER_DELAY_MS": "1500"}))

consumer = PushConsumer("delayed-diary")
consumer.subscribe("Reminders")
with consumer:
    lines = []
    for message in islice(consumer, 2):
        lines.append(f"{message.tags}: {message.body.decode()}")
        consumer.ack(message)  # islice requests no third message, which would acknowledge the second
print(*sorted(lines), sep="\n")
