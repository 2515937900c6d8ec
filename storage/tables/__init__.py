"""The tables that are replaced whole: a broker's JSON under `config/`, and this package's notes. Java: ConfigManager and its heirs.

Imports `settings`, `files` and, for who may write, `place`. Begin with `document.py`, then `topics.py`.
"""
