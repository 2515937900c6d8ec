"""What serves the threads of an open store: puts that share a sync, flushes in turn. Java: GroupCommitService, FlushRealTimeService.

Imports the facade, `put` and `messages`. Begin with `put_service.py`.
"""
