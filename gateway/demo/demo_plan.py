"""The numbers of the demo: the simulated replicas, and the gateway's configuration.

Both sides get equal replicas and equal configurations; only ``placement.policy`` differs.

One replica's cache holds about half of the applications' working set, three hold all of it. Routing therefore decides
whether a prefix is found, as on a busy real fleet. The speed is that of a mid-size model on one GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.simulator.config import EngineConfig

MODEL = "demo"
"""What clients send as ``model``."""

ENGINE = EngineConfig(
    model=MODEL,
    block_size=16,
    blocks=1536,
    prefill_rate=6000.0,
    decode_ms=20.0,
    slots=32,
    # Free ports on loopback. As with a real engine, only an address with a wildcard is listened at; the simulator takes
    # it for the address of its HTTP port.
    events="tcp://*:0",
    replay="tcp://*:0",
)
"""Every replica, of both sides."""

REPLICAS = 3
"""Replicas of each side."""

SLOWEST_START_SECONDS = 60.0
"""A child process that is not ready after this time counts as failed."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two fleets.

    Attributes:
        key: Its name in the JSON report, and in file names.
        title: Its name in tables.
        policy: The gateway's ``placement.policy``.
    """

    key: str
    title: str
    policy: str


GATEWAY = Side("gateway", "gateway", "expected_ttft")
ROUND_ROBIN = Side("round_robin", "round robin", "round_robin")


def configuration(side: Side, engines: Sequence[str], port: int, admin_port: int) -> str:
    """The gateway's configuration file, as for real engines.

    Args:
        side: Which of the two.
        engines: Base URLs of the replicas.
        port: The public port; 0 takes a free one.
        admin_port: The admin port; 0 takes a free one.
    """
    replicas = "".join(f'      - {{id: replica-{n}, url: "{url}"}}\n' for n, url in enumerate(engines, start=1))
    return (
        f"server: {{port: {port}, admin_port: {admin_port}, drain_seconds: 0, shutdown_grace_seconds: 1}}\n"
        "log: {format: json, requests: false}\n"
        "models:\n"
        f"  - id: {MODEL}\n"
        "    tokenizer: builtin:demo\n"
        f"    replicas:\n{replicas}"
        f"placement: {{policy: {side.policy}, slots: {ENGINE.slots}}}\n"
        # Both sides are compared, so every request is explained.
        "explain: {max_cpu_share: null}\n"
    )
