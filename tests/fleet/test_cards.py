"""What the replicas of a model say of it in ``/v1/models``."""

from fleets import MODEL, fleet, replica


def test_adapter_and_context_limit_follow_the_cards_of_the_replicas_that_are_there():
    of = fleet("ab")
    assert of.card_facts(MODEL) == ("", 0)
    of.set_card(of.find("a"), {"max_model_len": 4096})
    of.set_card(of.find("b"), {"max_model_len": 1024, "parent": "base"})
    assert of.card_facts(MODEL) == (MODEL, 1024)
    of.remove(of.find("b"))
    assert of.card_facts(MODEL) == ("", 4096)
    late = replica("c")
    late.card = {"max_model_len": 512}
    of.add(late)
    assert of.context_limit(MODEL) == 512
    assert of.card_facts("other") == ("", 0)
