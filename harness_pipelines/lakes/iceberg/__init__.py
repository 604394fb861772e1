"""The lake in Apache Iceberg, through PyIceberg."""
