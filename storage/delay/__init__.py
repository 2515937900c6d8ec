"""Messages that are due later: parked in system topics, delivered to their own when their time has come.

A service over an open store: imports the facade, `messages` and `tables`. Begin with `schedule.py`; the timer begins with
`timer_store.py`. Java: ScheduleMessageService, TimerMessageStore.
"""
