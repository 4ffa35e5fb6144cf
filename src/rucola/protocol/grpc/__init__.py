"""Messages of gRPC: those of RocketMQ 5, of gRPC's health checks and of its reflection.

The modules `*_pb2` are generated (`make protobuf`) from the .proto files of apache/rocketmq-apis and grpc/grpc-proto,
both under the Apache License 2.0. Their types are in a pool of their own: an application may load another version.
"""
