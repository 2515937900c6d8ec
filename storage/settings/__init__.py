"""The settings of broker.conf as frozen values, each with its unit, Java name and default. Java: BrokerConfig, MessageStoreConfig.

Begin with `nouns.py`; `load.py` reads the file, `java_settings.py` is the table of all of Java's names.
"""
