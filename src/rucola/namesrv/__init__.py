"""The name server: which broker has which topic, and a small key-value table.

`routes` and `kv` are the tables, without sockets or clock; `services` the use cases; `remoting` adapts requests to
services; `server` listens. Only the key-value table is stored: brokers register the rest again within seconds.
"""
