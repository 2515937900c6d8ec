"""Half messages: how a transaction is prepared, ended, checked and given up. Java: org.apache.rocketmq.broker.transaction.

A service over an open store. Begin with `check.py`.
"""
