"""Send without a response, for messages that may be lost, such as log lines.

It prints:

    sent
"""

from rucola.client.sync import Message, Producer

with Producer("shop") as producer:
    producer.send_oneway(Message("OnewayClicks", b"a pizza was looked at"))
    print("sent")
