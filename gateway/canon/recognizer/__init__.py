"""Recognizes values that change from request to request: times, ids, data of people.

The one table of their kinds is ``kinds.KINDS``. ``dynamic-suffix`` moves current times and ids out of prompts;
``gateway.explain.diff`` classifies the values at which two prompts differ. In: a text or two (``TextWindow``). Out: the
values with their kind. A new kind goes into ``time_kinds``, ``id_kinds`` or ``person_kinds``; words and names of
languages into ``gateway/canon/lexicon``.
"""
