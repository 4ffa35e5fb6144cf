"""The name server: who has which topic, and a small key-value table.

`routes` and `kv` are the tables, pure and given a clock reading; `processors` answers requests from them; `server`
puts them behind a socket; `config` is what the server is told. It keeps nothing that brokers would not tell it again
within seconds, except the key-value table.
"""
