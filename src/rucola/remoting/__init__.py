"""Remoting: connections that carry commands in both directions, a server, a client, and an event loop for servers.

Nothing here interprets request codes. Reading order: `connection`, `server`, `client`, `event_loop`, `stream`.
"""
