"""What is done to a prompt before it goes on: personal data in its leading messages is found, masked or refused."""

from gateway.canon.screen import PersonalDataScreen
from gateway.canon.settings import PersonalDataSettings

__all__ = ["PersonalDataScreen", "PersonalDataSettings"]
