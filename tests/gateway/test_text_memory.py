"""What the gateway remembers of texts is common to all only where all may know of each other."""

from running_gateway import settings_for
from tenancy import ask_as, sections, tenant

from gateway.core.ids import ModelId


def remembered(gateway):
    """Figures of the tokenizer's memory of whole texts; None for none."""
    local = gateway.gateway._models[ModelId("demo")].encoder.local
    figures = local.tokens._tokenizer.segment_cache_stats()
    assert (local.by_message is None) == (figures is None)
    return figures


async def test_whole_texts_are_remembered_for_a_single_tenant(gateway):
    before = gateway.gateway._models[ModelId("demo")].encoder.local.by_message.weight
    for text in ("The very same text.", "The very same text.", "Another text."):
        await gateway.ask(text)
    assert remembered(gateway)["hits"] > 0
    assert gateway.gateway._models[ModelId("demo")].encoder.local.by_message.weight > before


async def test_and_not_where_tenants_are_kept_apart(engine, start_gateway):
    gateway = await start_gateway(engine, **sections(tenant("a")))
    assert (await ask_as(gateway, "a")).status_code == 200
    assert remembered(gateway) is None


async def test_nor_once_a_reload_keeps_them_apart(engine, start_gateway):
    gateway = await start_gateway(engine)
    await gateway.ask("A text from before.")
    assert remembered(gateway) is not None
    await gateway.gateway.reload(settings_for([engine], **sections(tenant("a"))))
    assert (await ask_as(gateway, "a")).status_code == 200
    assert remembered(gateway) is None
    await gateway.gateway.reload(settings_for([engine]))
    assert remembered(gateway) is not None
