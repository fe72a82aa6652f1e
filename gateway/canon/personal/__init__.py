"""Personal data in the leading messages of prompts: found, masked or refused."""

from gateway.canon.personal.screen import PersonalDataScreen
from gateway.canon.personal.settings import PersonalDataSettings

__all__ = ["PersonalDataScreen", "PersonalDataSettings"]
