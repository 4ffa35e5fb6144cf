"""Send without waiting for an answer: for what may get lost, such as a line of a log.

It prints:

    sent
"""

from rucola.client.sync import Message, Producer

with Producer("shop") as producer:
    producer.send_oneway(Message("Clicks", b"a pizza was looked at"))
    print("sent")
