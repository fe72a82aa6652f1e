"""Small models of random numbers for the captures. Needs the engine's own virtual environment."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from vllm.lora.request import LoRARequest


def make_adapter(folder: Path, model: Path) -> LoRARequest:
    """A LoRA adapter of random numbers for a model of the Llama family."""
    config = json.loads((model / "config.json").read_text())
    hidden, layers, rank = config["hidden_size"], config["num_hidden_layers"], 8
    torch.manual_seed(0)
    tensors = {}
    for layer in range(layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(rank, hidden) * 0.01
        tensors[f"{name}.lora_B.weight"] = torch.randn(hidden, rank) * 0.01
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    written = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(written))
    return LoRARequest("polite", 1, str(folder))


def make_hybrid_model(folder: Path) -> Path:
    """The description of a model whose layers have sliding-window and full attention in turn; there are no weights."""
    layers = 4
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "vocab_size": 48_128,
        "max_position_embeddings": 1024,
        "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
        "torch_dtype": "float32",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder
