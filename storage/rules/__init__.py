"""What a broker decides about a message before it is put: topic, queue, sizes, state. Pure, and without knowing requests.

Imports `messages`, `tables` and `settings` for their values. Begin with `message_check.py`.
Java: AbstractSendMessageProcessor.msgCheck, HookUtils, TopicConfigManager.
"""
