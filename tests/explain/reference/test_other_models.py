"""Which requests of other models are references, and that the one that shares most of the prompt is found."""

from reference_prompts import NOW, SUPPORT, assistant, request, system, user

from gateway.explain.reference import References

MIB = 2**20


def kept(*requests):
    references = References(16 * MIB, 3600.0)
    for each in requests:
        references.keep(each, each.at)
    return references


def found(references, asked):
    """What a request is compared with: its id, how it was chosen, whether it is of the same conversation."""
    answer = references.find(asked, asked.at)
    return answer and (answer.reference.request_id, answer.chosen_by, answer.same_conversation)


def test_first_request_of_a_model_has_no_reference_at_another_model():
    prompt = [system(SUPPORT), user("Where is my bag? I have been waiting for it at the airport for three days now.")]
    references = kept(request("small", *prompt, model="small"))
    assert found(references, request("large", *prompt, model="large")) is None
    assert found(references, request("other", system(SUPPORT + "!"), user("And my dog?"), model="large")) is None


def test_conversation_that_moves_is_compared_with_the_turn_on_the_other_model():
    first = [system(SUPPORT), user("Where is my bag?")]
    second = [*first, assistant("In Oslo, at the counter."), user("Why?")]
    references = kept(request("a1", *first, model="small", reply="In Oslo, at the counter."))
    assert found(references, request("a2", *second, model="large")) == ("a1", "conversation", True)
    both = kept(
        request("a1", *first, model="small", reply="In Oslo, at the counter."),
        request("b1", *first, model="large", reply="I do not know."),
    )
    # Each model got the whole conversation.
    assert found(both, request("b2", *second, model="large")) == ("b1", "conversation", True)


def test_session_with_another_task_at_another_model_has_not_moved():
    references = kept(request("work", system(SUPPORT), user("Where is my bag?"), session="a", model="large"))
    title = request("title", system(SUPPORT), user("Give it a title"), session="a", model="small")
    assert found(references, title) is None
    again = request("again", system(SUPPORT), user("Where is my bag?"), session="a", model="small")
    assert found(references, again) == ("work", "session", True)


def test_similar_frame_of_the_same_model_is_found_behind_a_more_similar_one_of_another():
    references = kept(
        request("mine", system(SUPPORT + "\nThe customer is Maria Lopez."), user("Hi"), model="m"),
        request("others", system(SUPPORT), user("Hi"), model="n"),
    )
    assert found(references, request("now", system(SUPPORT), user("A dog?"), model="m"))[0] == "mine"


def test_request_that_shares_most_comes_before_a_later_one():
    def case(request_id, number, at):
        return request(request_id, system(f"Case {number}. {SUPPORT}"), user("My bag?"), at=NOW + at)

    references = References(16 * MIB, 3600.0)
    for at in range(12):
        each = case(f"case {at}", at, at)
        references.keep(each, each.at)
    asked = case("again", 0, 20)
    assert references.find(asked, asked.at).reference.request_id == "case 0"
    asked = case("new", 99, 21)
    assert references.find(asked, asked.at).reference.request_id == "case 11"


def test_conversation_of_another_session_has_not_moved():
    references = kept(request("t1", system(SUPPORT), user("hello"), session="t", model="large"))
    asked = [system(SUPPORT), user("hello"), assistant("ok"), user("my bag")]
    assert found(references, request("s1", *asked, session="s", model="small")) is None


def test_a_turn_that_went_on_at_another_model_is_no_reference_there():
    first = [system(SUPPORT), user("Where is my bag?")]
    second = [*first, assistant("In Oslo, at the counter."), user("Why?")]
    references = References(16 * MIB, 3600.0)
    for each in (request("a1", *first, model="m"), request("a2", *second, model="other")):
        references.find(each, each.at)
        references.keep(each, each.at)
    assert found(references, request("b1", system(SUPPORT), user("A dog?"), model="m"))[0] == "a1"
