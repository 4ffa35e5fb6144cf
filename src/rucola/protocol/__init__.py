"""The wire protocol without I/O: frames, commands, codes, headers and bodies.

Headers and bodies have one module per subject. Nothing here owns a socket, reads a clock or distinguishes client from
broker. Reading order: `codes`, `command`, `frame`, then the subjects `send`, `pull`, `query`, `offset`, `heartbeat`,
`topic`, `route`, `kv`.
"""
