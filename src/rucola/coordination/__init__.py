"""Coordination of a broker group by etcd: its master and in-sync slaves, which have all acknowledged messages.

    etcd            client of etcd 3 by its HTTP/JSON gateway
    group_keys      the keys of a group in etcd, and their contents
    election        the state machine, without I/O, clock or event loop
    decisions       its decisions, which the coordinator carries out
    incarnation     the number of a log, which changes if it may lack confirmed messages
    write_lease     the right of a master to acknowledge messages, which expires
    coordinator     the loop that reads etcd, and carries the decisions out

Without etcd, roles are those in the configuration files.
"""
