"""How fast Spark reads a RocketMQ store, beside Spark's Kafka source and the ceiling of Python sources."""
