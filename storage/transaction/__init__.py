"""Half messages: how a transaction is prepared, ended, asked back and given up. Java: org.apache.rocketmq.broker.transaction.

A service over an open store: imports the facade, `messages` and `tables`. Begin with `check.py`.
"""
