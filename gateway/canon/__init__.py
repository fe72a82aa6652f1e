"""What is done to a prompt before it goes on: canonicalization, and personal data in its leading messages."""
