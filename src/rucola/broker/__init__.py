"""The broker: stores messages, delivers them, and replicates them.

`broker` starts and stops the parts that `assembly` builds, and `role_control` changes its role. `remoting` answers
requests; `delivery` delivers delayed, timer and transactional messages; `replication` connects master and slaves;
`tables` holds the metadata in `config/*.json`; `background` has the scheduler and its tasks. The store itself is
`rucola.store`.
"""
