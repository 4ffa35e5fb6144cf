"""The wire protocol without I/O: frames, commands, codes, and one module per subject for headers and bodies.

Nothing here owns a socket, reads a clock or distinguishes client from broker. Reading order: `codes`, `command`,
`frame`, then the subjects `send`, `pull`, `query`, `offset`, `heartbeat`, `topic`, `route`, `kv`.
"""
