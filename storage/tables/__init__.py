"""The tables that are replaced whole: a broker's JSON under `config/` and this package's notes. Also where a store's log lies.

Begin with `document.py`, then `topics.py`; before a byte is written: `log_place.py`.
Java: ConfigManager and its heirs.
"""
