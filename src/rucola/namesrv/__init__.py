"""The name server: which broker has which topic, and a small key-value table.

`routes` and `kv` are the tables, without sockets and with the time as an argument; `services` are the use cases on
them; `remoting` adapts requests to services; `server` puts all of them behind a socket; `config` has the settings. The
name server stores nothing that brokers would not register again within seconds, except the key-value table.
"""
