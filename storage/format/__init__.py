"""What stands in RocketMQ's files, as pure functions: bytes and arrays in, bytes and arrays out. No I/O."""
