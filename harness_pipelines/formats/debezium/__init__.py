"""Change events of Debezium: what each puts or deletes."""
