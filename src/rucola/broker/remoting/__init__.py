"""The broker's remoting adapters: header -> service -> response.

One module per subject, with a class that returns its endpoints (see `rucola.remoting.endpoints`). A handler
translates the content of a `Request` into domain values, calls one service, and encodes the result. Refusals pass
through it as exceptions. `send` and `pull` also format responses straight into bytes.
"""
