"""What programs that use RocketMQ need in their tests: a name server and a broker that start in milliseconds.

`plugin` gives pytest the fixtures; `rocketmq.RocketMQ` is what they hand out, and works without pytest as well. The
user's page is docs/testing.md.
"""
