"""Connections that carry commands in both directions, with their servers, clients and event loop.

Nothing here interprets request codes. Reading order: `connection`, `server`, `client`, `event_loop`, `stream`.
"""
