"""Test support for programs that use RocketMQ: name server and broker, started in milliseconds.

`plugin` is the pytest plugin; `rocketmq.RocketMQ` also works without pytest. User documentation: docs/testing.md.
"""
