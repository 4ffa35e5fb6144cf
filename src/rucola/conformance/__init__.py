"""Scenarios of a client of RocketMQ 5, for any server of its gRPC protocol: brokers of Rucola, Apache's proxy, others.

client       calls, and what clients need of each response
scenarios    the scenarios, and their run
"""
