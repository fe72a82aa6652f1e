import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import gateway.tokenize
from docs.generate import train_demo_tokenizer

SHIPPED = Path(gateway.tokenize.__file__).parent / "builtin" / "demo"
FILES = ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(SHIPPED)


def test_training_again_gives_the_shipped_bytes(tmp_path):
    command = [sys.executable, "-m", "docs.generate.train_demo_tokenizer", str(tmp_path / "new")]
    subprocess.run(command, check=True, capture_output=True)

    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == FILES
    for name in FILES:
        assert (tmp_path / "new" / name).read_bytes() == (SHIPPED / name).read_bytes()


def test_it_is_small():
    assert (SHIPPED / "tokenizer.json").stat().st_size < 400_000


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")

    assert train_demo_tokenizer.main([str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"cannot write to {tmp_path / 'file'}: File exists\n"


@pytest.mark.parametrize(
    "text",
    [
        "Hello, where's my order?",
        "  two\n\n\tlines\r\n ",
        "你好 мир 👩‍💻 é",
        "x = {'a': 12345}",
        "\x00\x7f",
        "never seen: zqxj",
    ],
)
def test_any_text_survives(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_one_token_each_and_the_turn_ends_the_text(tokenizer):
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
    assert tokenizer.eos_token_id == 2
    assert len(tokenizer) == 4096


def test_english_takes_far_fewer_tokens_than_bytes(tokenizer):
    text = "Thank you for your patience. I have checked your order and the delivery will arrive tomorrow morning."
    assert len(tokenizer.encode(text)) < len(text) / 3


def test_the_template_writes_a_conversation_with_tools(tokenizer):
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Find it."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"type": "function", "id": "1", "function": {"name": "find", "arguments": {"what": "größe"}}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "found"},
    ]
    tools = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]

    text = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)

    assert text == (
        "<|im_start|>system\nBe kind.\n\nThese functions can be called:\n<tools>\n"
        + json.dumps(tools[0])
        + "\n</tools>\nTo call one, write its name and its arguments as one JSON object between <tool_call> and "
        "</tool_call>.<|im_end|>\n"
        "<|im_start|>user\nFind it.<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "find", "arguments": {"what": "größe"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\nfound<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_without_a_system_message_or_tools_none_is_made_up(tokenizer):
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert text == "<|im_start|>user\nHi<|im_end|>\n"
