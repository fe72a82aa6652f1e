"""Analysis of recorded requests: what of their prompts repeats, why the rest does not, and where to start.

In: ``LoggedRequest`` from ``evaluation.logs``. Out: ``LogAnalysis``, which the reports print. ``log_pipeline`` shows
the stages: a request is encoded as the gateway does it (``record_encoding``), looked up in an ideal cache
(``ideal_cache``), and explained by the code that explains live requests (``log_explainer``).
"""
