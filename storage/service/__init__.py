"""What serves the threads of an open store: puts that share an append and a sync, flushes in turn, reads beside them.

    put_service.py      the service: puts, deletions, tables, look-ups, duties
    put_group.py        puts that join one append, and what each waits for; replica_acks.py: who holds what of the log
    served_store.py     what pulls read

Java: GroupCommitService, FlushRealTimeService. Imports the facade, `put` and `rules`. Begin with `put_service.py`.
"""
