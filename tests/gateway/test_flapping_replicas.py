"""A replica that leaves, comes back and leaves again before it was forgotten."""

import asyncio

import pytest
from running_gateway import eventually, settings_for

from gateway.server.reload import merged


@pytest.fixture
def have(start_gateway):
    """Has a gateway go by these replicas, as a changed file would."""

    async def reload(gateway, *engines):
        settings, _ = merged(gateway.gateway._settings, settings_for(engines))
        await gateway.gateway.reload(settings)

    return reload


async def test_it_is_forgotten_once(start_engine, start_gateway, have):
    a, b = [await start_engine() for _ in range(2)]
    gateway = await start_gateway(a, b, relay={"health_interval_seconds": 0.1})

    async def names():
        return set(await gateway.replicas())

    async def there(*wanted):
        async def holds():
            return await names() == set(wanted)

        await eventually(holds)

    await have(gateway, a)
    await asyncio.sleep(0.3)
    await have(gateway, a, b)
    await have(gateway, a)
    await there("r0")
    await have(gateway, a, b)  # another one by the same name
    await there("r0", "r1")
    await asyncio.sleep(1)

    # Its checks go on, and it is still known to those who decide who is there.
    await b.kill()

    async def down():
        return (await gateway.replicas())["r1"]["up"] is False

    await eventually(down)
    await have(gateway, a)
    await there("r0")
