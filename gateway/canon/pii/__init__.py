"""Personal data in the leading messages of prompts: found, masked or refused."""

from gateway.canon.pii.screen import PersonalDataScreen

__all__ = [
    "PersonalDataScreen",
]
