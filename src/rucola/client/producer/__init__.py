"""Producers: plain and transactional.

Reading order: `send_request`, `queue_selectors`, `latency_faults`, `in_flight`, `producer`, `transaction`.
"""
