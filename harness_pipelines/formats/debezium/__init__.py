"""Change events of Debezium: puts and deletes."""
