"""Sockets: connections that move commands both ways, a server that accepts them and a client that opens them.

Nothing here knows what a code means. Reading order: `connection`, `server`, `client`.
"""
