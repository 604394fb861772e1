"""The lake in Apache Iceberg, by PyIceberg."""
