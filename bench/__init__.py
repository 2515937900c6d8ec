"""How fast Spark reads and writes RocketMQ stores, beside Kafka and the ceiling of Python data sources."""
