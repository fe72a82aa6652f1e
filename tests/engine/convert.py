"""Write a Hugging Face model folder (config, tokenizer, chat template, float32 weights) from a GGUF file.

Runs inside the engine's own virtual environment: ``convert.py FOLDER FILE.gguf TARGET``.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(folder: str, gguf: str, target: str) -> None:
    out = pathlib.Path(target)
    out.mkdir(parents=True, exist_ok=True)
    AutoTokenizer.from_pretrained(folder, gguf_file=gguf).save_pretrained(out)

    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf, dtype=torch.float32)
    # The output layer shares the embedding's memory; a shared tensor cannot be stored twice in one safetensors file.
    tensors = {
        name: value.contiguous().clone() for name, value in model.state_dict().items() if name != "lm_head.weight"
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})

    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "dtype": "float32",
        "torch_dtype": "float32",
        "tie_word_embeddings": True,
    }
    (out / "config.json").write_text(json.dumps(config, indent=1, default=str))
    model.generation_config.save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:4])
