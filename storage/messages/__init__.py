"""Rules from one message to another: parked, halved, committed, sent back. Pure.

Imports `format`, `settings`, `tables` and `log` for their values. Begin with `inner_messages.py`.
Java: MessageExtBrokerInner, TransactionalMessageBridge, ScheduleMessageService's rules.
"""
