"""The rules for a message before it is put: one function for a request and for columns of rows. Pure: values, Arrow and NumPy.

First topic, queue, size, delay, retry and half message, of one message or of columns; then the rows of a DataFrame by the same rules
(`row_columns.py`, `message_rows.py`, `retry_rows.py`).
Begin with `inner_messages.py`, then `row_columns.py`.
Java: SendMessageProcessor, PutMessageHook, MessageExtBrokerInner.
"""
