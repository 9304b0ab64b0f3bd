"""Sources that are topics of Kafka."""
