"""Delayed messages: parked in system topics, delivered to their own when they are due.

A service over an open store. Begin with `schedule.py`; the timer begins with
`timer_store.py`. Java: ScheduleMessageService, TimerMessageStore.
"""
