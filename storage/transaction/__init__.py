"""Half messages: how a transaction is prepared, ended, asked back and given up. Java: org.apache.rocketmq.broker.transaction."""
