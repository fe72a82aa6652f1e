"""An address that has gone to an engine of another model."""


async def test_it_gets_nothing_while_others_serve_the_model(scripted, start_engine, start_gateway):
    other = await start_engine()
    scripted.models = b'{"object":"list","data":[{"id":"another","object":"model"}]}'
    gateway = await start_gateway(scripted, other, placement={"policy": "round_robin"})
    answers = [await gateway.ask(max_tokens=2) for _ in range(4)]
    assert {answer.headers["x-gateway-replica"] for answer in answers} == {"r1"}
    assert scripted.received == []


async def test_a_wrong_name_is_for_the_engine_to_refuse(scripted, start_gateway):
    scripted.models = b'{"object":"list","data":[{"id":"another","object":"model"}]}'
    gateway = await start_gateway(scripted)
    assert (await gateway.ask()).status_code == 200
    assert len(scripted.received) == 1
