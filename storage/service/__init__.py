"""Serves the threads of an open store: puts that share an append and a sync, periodic flushes, and reads beside them.

    put_service.py      the service: puts, deletions, tables, look-ups, duties
    put_group.py        puts that join one append, and what each waits for; what each replica holds of the log
    served_store.py     reads for pulls

Java: GroupCommitService, FlushRealTimeService. Begin with `put_service.py`.
"""
