"""Test support for programs that use RocketMQ: name server and broker, started in milliseconds.

`plugin` is the pytest plugin with the fixtures; `rocketmq.RocketMQ` is the object that they yield, which also works
without pytest. User documentation: docs/testing.md.
"""
