"""Consumers: the pull consumer, the push consumer and its parts.

Reading order: `pull_consumer`; `options` and `process_queue` (no I/O); `assigned_queue`; `assignment`
with `group_members`, `start_offsets`, `queue_locks` and `offset_store`; `fetcher`; `ready_queue`; `listener`,
`dispatcher`, `iteration` and `in_flight_deliveries`; `retry`; `operations`; `push_consumer`.
"""
