"""Coordination of a broker group by etcd: its master and its in-sync slaves.

In-sync slaves have everything that was acknowledged.

    etcd            client of etcd 3 by its HTTP/JSON gateway
    group_keys      the keys of a group in etcd, and their contents
    election        the decisions, as a state machine without I/O, clock or event loop
    decisions       what the state machine decides, for the coordinator to carry out
    incarnation     the number of a log that may lack nothing it confirmed
    write_lease     the right of a master to acknowledge messages, which ends by itself
    coordinator     the loop that asks etcd, and carries the decisions out

A group without etcd has none of this: its roles are those of its configuration files.
"""
