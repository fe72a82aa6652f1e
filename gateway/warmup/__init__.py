"""Warm-up: fills the caches of engines with declared prefixes, on request of an operator or when a replica joins.

In: a file of prefixes or a body of ``POST /admin/api/warm``. Out: requests to replicas, and jobs with their progress.
Start with ``warmer.Warmer``: it parses (``declared``, ``document``), plans (``warmup_plan``) and sends (``runner``).
``lasting`` sends prefixes again after what made them unreachable (``pending``, ``budget``, ``hot_prompts``); ``ledger``
counts what all of it costs and saves. ``registered`` makes the prefixes of registered prompts.
"""

from gateway.warmup.registered import in_application, registered_prefixes
from gateway.warmup.warmer import Warmer

__all__ = ["Warmer", "in_application", "registered_prefixes"]
