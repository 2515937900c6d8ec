"""Compiled loops over many rows (Numba): the same arrays as the functions that call them, in one pass. Never needed, only faster.

Imports words and `format`. Begin with `decode.py`: what there is. `storage/compiler.py` says when it is used, and imports it; nothing
else does, as these modules import Numba. Only reading is compiled: encoding rows saved 6 to 9 % of a whole write, entering records into
log, queues and index nothing measurable.
"""
