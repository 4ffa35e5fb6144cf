"""Consumers: the pull consumer, the push consumer and its parts.

Reading order: `options`, `allocation` and `process_queue` (pure), `assigned_queue`, `assignment` with `queue_locks` and
`offset_store`, `fetcher`, `ready_queue`, `listener`, `dispatcher`, `retry`, `push_consumer`.
"""
