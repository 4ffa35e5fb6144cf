"""The broker's remoting adapters: header -> service -> response.

One module per subject. Each has one class that takes the services it needs and returns its endpoints: request code,
action, request type, resource and handler (see `rucola.remoting.endpoints`). A handler `(connection, command, request)
-> Reply` reads arguments from the decoded request, calls one service, and encodes the result. It decides nothing that
another protocol would have to decide again. Refusals pass through it as exceptions.

`endpoints.broker_endpoints` lists them all. Two adapters do more than translate, because a measurement asks for it:

    send     the response is formatted straight into bytes, 3 µs cheaper per message than through a RemotingCommand
    pull     a pull that is held keeps its decoded header, and answers over its connection when messages arrive
"""
