"""Compiled loops over many rows (Numba): the same bytes as the functions that call them, in one pass. Never needed, only faster.

Imports words and `format`. Begin with `compiled.py`: which modules there are, and when they are used. Modules that import Numba are in
this folder, and nobody imports them but `compiled.py`.
"""
