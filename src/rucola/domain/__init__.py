"""What brokers, clients and operators speak about: topics, groups, queues, subscriptions, statistics, roles and users.

A struct has the names of Apache's JSON in camelCase, with the fields in alphabetical order, as in fastjson, so that
configuration files are identical to Apache's. How one travels is described in `rucola.protocol`.
"""
