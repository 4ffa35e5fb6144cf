"""Connections, servers, clients and the event loop. Nothing here interprets request codes."""
