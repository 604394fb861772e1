"""Values with a schema: Avro, Protobuf and their common parts."""
