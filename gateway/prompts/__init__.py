"""Registered prompts: texts with variables by id and version, and the applications that requests name.

``template_language`` says what of Jinja a text may use, ``includes`` which texts hold which others, ``rendering`` fills
texts in, and ``registry`` finds the version that a request names. Nothing here does I/O: ``config`` reads the prompts.
"""

from gateway.prompts.registry import Prompt, PromptMessage, PromptRegistry, PromptVersion, some_of

__all__ = ["Prompt", "PromptMessage", "PromptRegistry", "PromptVersion", "some_of"]
