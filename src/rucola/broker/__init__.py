"""The broker: stores messages, delivers them, and replicates them.

`broker` starts and stops the parts that `assembly` builds, `role_control` changes the role, `remoting` serves requests,
`delivery` delivers delayed, timer and transactional messages, `tables` holds the metadata in `config/*.json`.
"""
