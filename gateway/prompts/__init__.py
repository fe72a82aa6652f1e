"""Texts of registered prompts, with variables.

``template_language`` says what of Jinja a text may use, ``includes`` which texts hold which others, and ``rendering``
fills texts in. Nothing here does I/O: ``config`` reads the prompts, and ``admission.prompt_registry`` finds the version
that a request names.
"""
