"""The texts of a prompt that rules may change."""

from gateway.canon.texts import texts

CHAT = {
    "messages": [
        {"role": "system", "content": "a"},
        {"role": "user", "content": ["b", {"type": "text", "text": "c"}, {"type": "image_url"}, {"type": "text"}]},
        {"role": "assistant", "content": "d"},
        {"role": "tool", "content": None},
        {"role": 7, "content": "e"},
    ]
}


def test_texts_of_all_messages_have_their_paths():
    found = [(each.path, each.role, each.message, each.text) for each in texts(CHAT)]
    assert found == [
        (("messages", 0, "content"), "system", 0, "a"),
        (("messages", 1, "content", 0), "user", 1, "b"),
        (("messages", 1, "content", 1, "text"), "user", 1, "c"),
        (("messages", 2, "content"), "assistant", 2, "d"),
    ]


def test_only_the_texts_of_the_wanted_roles():
    assert [each.text for each in texts(CHAT, {"user", "tool"})] == ["b", "c"]


def test_prompts_of_a_completion_have_no_role():
    assert [(each.path, each.text) for each in texts({"prompt": "a"}, {"user"})] == [(("prompt",), "a")]
    assert [each.path for each in texts({"prompt": ["a", [1, 2], "b"]})] == [("prompt", 0), ("prompt", 2)]


def test_a_request_with_prompt_and_messages_has_no_texts():
    assert texts({"prompt": "a", **CHAT}) == []
    assert texts({"model": "m"}) == []
