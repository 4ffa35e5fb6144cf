"""The wire protocol without I/O: frames, commands, codes, headers and bodies.

Owns no socket, reads no clock. Reading order: `codes`, `command`, `frame`, then the subjects.
"""
