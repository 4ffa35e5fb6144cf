"""Producers: plain and transactional.

Reading order: `options`, `send_request` (the request of a message or batch), `queue_selectors`, `latency_faults` and
`queue_rotation` (choice of a queue), `in_flight_sends`, `sender` (one request with its retries), `pipeline` (many
requests at a time), `producer`, `transaction`.
"""
