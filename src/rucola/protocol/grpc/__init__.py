"""Messages of gRPC: of RocketMQ 5, gRPC's health checks and its reflection.

The modules `*_pb2` are generated (`make protobuf`) from the .proto files of apache/rocketmq-apis and grpc/grpc-proto,
both under the Apache License 2.0. Their types are in a separate pool: an application may load another version.
"""
