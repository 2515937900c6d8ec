"""What serves the threads of an open store: puts that share an append and a sync, flushes in turn, reads beside them.

Java: GroupCommitService, FlushRealTimeService.

Imports the facade, `put` and `messages`. Begin with `put_service.py`.
"""
