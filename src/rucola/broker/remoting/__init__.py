"""The broker's remoting adapters: header -> service -> response.

One module per subject, with a class that returns its endpoints (see `rucola.remoting.endpoints`). A handler
`(connection, command, request) -> Reply` reads arguments from the decoded request, calls one service, and encodes the
result. Refusals pass through it as exceptions. Two do more: `send` formats responses straight into bytes, and `pull`
keeps the decoded header of a held pull.
"""
