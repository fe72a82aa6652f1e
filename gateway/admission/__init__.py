"""Who may ask, and how much.

``callers`` finds out who asks, by key (``gateway.keys``), by a trusted proxy's word (``proxies``) or, in open mode, by
nothing; ``limits`` counts what each tenant takes, with ``windows``; ``gate`` is both together.
"""

from gateway.admission.gate import Gatekeeper
from gateway.admission.mistakes import mistakes

__all__ = ["Gatekeeper", "mistakes"]
