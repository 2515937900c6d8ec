"""Messages that are due later: parked in system topics, delivered to their own when their time has come."""
