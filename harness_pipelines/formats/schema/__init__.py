"""Values that are written with a schema: Avro, Protobuf, and what they have in common."""
