"""Background tasks of the broker: the scheduler, file retention, registration and group commit."""
