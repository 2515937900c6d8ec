"""Compiled loops over many rows (Numba): the same arrays as the functions that call them, in one pass. Never needed, only faster.

Begin with `decode.py`: what there is. `storage/compiler.py` says when it is used, and imports it; nothing
else does, as these modules import Numba. Compiled is what a measurement of whole operations has paid for: reading, and of writing the
join of records and hashes of texts. Laying out property strings and entering records into log, queues and index are not.
"""
