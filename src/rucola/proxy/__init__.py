"""A proxy for clients of RocketMQ 5: one gRPC port before all brokers of a cluster.

    brokers          the masters of the cluster, the connections to them, and the brokers of a topic
    transaction_ids  a broker's name in the ids of its transactions
    forward          methods that go to one broker, or to all with one response
    telemetry        a client's Telemetry stream, and one to each broker
    config           settings
    server           the parts together

Every broker serves gRPC itself, so the proxy decodes only what decides the way of a call, and forwards metadata as it
is: accounts, limits and codes are the brokers'. It keeps no state: what a client gives back names its broker, so any
proxy can forward it.

Corresponds to the cluster mode of the proxy of Apache RocketMQ 5.
"""
