"""Bodies of messages decoded into Arrow structs: JSON, Avro and Protobuf, with schemas of files or of a registry.

    from rucola.spark.bodies import parse_decoding

    topic, decoder = parse_decoding("Orders=json:orders.json")
    decoder.decode(bodies, None).errors                      # reasons by row

    decoded          what a decoder returns, and rules for the names of columns
    json_bodies      JSON by pyarrow, thousands of bodies at a time
    json_schemas     JSON Schema as an Arrow type, and the schema of a sample
    avro_bodies      Avro by fastavro
    protobuf_bodies  Protobuf by descriptors
    registry         schemas of a Confluent-compatible registry, and bodies that begin with the id of theirs
    formats          which decoder an option names

The fields of an Arrow type have metadata: `aliases` (former names, as JSON) and `number` (of a Protobuf field).
"""

from rucola.spark.bodies.decoded import Decoded, Decoder
from rucola.spark.bodies.formats import parse_decoding
from rucola.spark.bodies.json_schemas import InferredSchema, infer

__all__ = ["Decoded", "Decoder", "InferredSchema", "infer", "parse_decoding"]
