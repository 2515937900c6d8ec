"""Compiled loops over many rows (Numba): the same arrays as the functions that call them, in one pass. Never needed, only faster.

Begin with `decode.py`: what there is. `storage/compiler.py` says when it is used, and imports it; nothing
else does, as these modules import Numba. Compiled is what a measurement of whole operations has paid for: reading, and of writing the
joins of records and of texts, and hashes of texts. Entering records into log, queues and index is not.
"""
