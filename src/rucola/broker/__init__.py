"""The broker: where protocol meets store.

`broker` assembles the parts; `processors/<subject>` answer the requests of `protocol/<subject>`; `tables/` hold what
lies in `config/*.json`; `clients` knows who is connected; `pull_hold` keeps pulls that wait for messages; `flush` makes
acknowledged messages durable; `registration` tells the name servers; `clockwork` winds it all.
"""
