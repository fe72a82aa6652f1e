"""Finds personal data in prompts.

In: requests. Out: masked requests or errors (``PersonalDataScreen.inspect``), and reports of findings in answered
requests (``reports``). Start with ``screen``; ``kinds/`` has one file per built-in kind.
"""

from gateway.canon.pii.screen import PersonalDataScreen

__all__ = [
    "PersonalDataScreen",
]
