"""The configuration file: reading YAML, problems by line and key, and one module of settings per section.

In: a file. Out: ``settings.Settings``. Start with ``settings``; ``config_file`` reads the file.
"""
