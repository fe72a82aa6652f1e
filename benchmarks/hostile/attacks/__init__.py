"""The attacks, a file for each kind. ``CATALOG`` has all of them by name, in the order in which they run."""

from benchmarks.hostile.attacks import (
    arguments,
    connections,
    containers,
    conversations,
    members,
    numbers,
    personal,
    prompts,
    seeded,
    strings,
    texts,
    unreadable,
)
from benchmarks.hostile.attacks.attack import Attack

CATALOG: dict[str, Attack] = {
    attack.name: attack
    for kind in (
        members,
        numbers,
        strings,
        unreadable,
        containers,
        arguments,
        prompts,
        texts,
        personal,
        conversations,
        seeded,
        connections,
    )
    for attack in kind.ATTACKS
}
