"""State shared by several gateways through Redis, where one is configured.

In and out: encrypted messages between gateways (``messages``, ``peer_channel``), records that outlive them
(``records``), and context blocks of conversations (``redis_context``). Without Redis every gateway works alone. Start
with ``wiring``; ``connect`` opens connections and pauses after failures, ``seal`` encrypts.
"""
