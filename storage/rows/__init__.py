"""Columns of rows, held to the rules that single messages obey. Pure: Arrow and NumPy in and out.

Imports `messages`, `tables` and `settings`. Begin with `columns.py`, then `messages.py`.
"""
