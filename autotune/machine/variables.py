"""Environment variables that decide how an engine runs, for two uses.

`engine_variables`, all of them, are recorded with a study and exported with it: names by their
beginnings, what vLLM, ROCm, CUDA and their libraries read, without secrets, logging and what
spectune itself needs for measuring. `kernel_variables`, a few of them, are a part of what makes two
measurements comparable (`Environment.variables`): with other values it is another study.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.machine.environment import EngineInfo

PREFIXES = (
    "VLLM_", "AITER_", "HIP_", "HSA_", "ROCR_", "ROCM_", "MIOPEN_", "HIPBLASLT_", "TENSILE_",
    "CUDA_", "NVIDIA_", "NCCL_", "RCCL_", "TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "TRITON_",
    "FLASHINFER_", "FLASH_ATTENTION_", "GPU_", "OMP_", "MKL_", "KMP_", "NUMBA_", "SAFETENSORS_",
)  # fmt: skip
SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
# they change no figure, or belong to the machine and the measuring itself
LEFT_OUT = ("VLLM_LOG", "VLLM_CONFIGURE_LOGGING", "VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK",
            "VLLM_USAGE", "VLLM_SERVER_DEV_MODE", "VLLM_HOST_IP", "VLLM_PORT", "VLLM_RPC",
            "VLLM_CI_", "NVIDIA_REQUIRE", "NVIDIA_PRODUCT", "CUDA_HOME", "CUDA_VERSION",
            "ROCM_PATH", "ROCM_HOME")  # fmt: skip
# of one machine: of no use in a container that gets its devices from elsewhere
LOCAL = ("VISIBLE_DEVICES", "DEVICE_ORDER", "_DIR", "_PATH", "_ROOT", "_HOME", "_SOCKET_IFNAME")
# What chooses attention kernels and the model runner, or how many threads draft and verify.
KERNELS = re.compile(
    r"VLLM_(USE_V2_MODEL_RUNNER|USE_V1|ATTENTION_BACKEND|ROCM_\w+|USE_AITER\w*|USE_TRITON_\w+"
    r"|USE_FLASHINFER_\w+|FLASH_ATTN_VERSION|MLA_DISABLE|CPU_OMP_THREADS_BIND)"
    r"|AITER_\w+|TORCH_BLAS_PREFER_HIPBLASLT|PYTORCH_TUNABLEOP_ENABLED|HSA_OVERRIDE_GFX_VERSION"
    r"|OMP_NUM_THREADS|NUMBA_NUM_THREADS"
)
# On a CPU that others share, numba's thread pool makes the n-gram drafter many times slower and
# pinned OpenMP threads fight for one core.
CPU = {"NUMBA_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def missing_on_cpu(environment: Mapping[str, str]) -> dict[str, str]:
    """What an engine on a CPU is given beside the user's environment."""
    return {name: value for name, value in CPU.items() if name not in environment}


def kernel_variables() -> dict[str, str]:
    """Of our environment, which the engine inherits: what decides which kernels run."""
    return {name: os.environ[name] for name in sorted(os.environ) if KERNELS.fullmatch(name)}


def engine_variables(
    info: EngineInfo, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables that an engine of this build is started with, by name (None: ours, now)."""
    given = os.environ if environment is None else environment
    added = missing_on_cpu(given) if info.platform == "cpu" else {}
    return dict(sorted({**{k: v for k, v in given.items() if _matters(k)}, **added}.items()))


def portable(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that may go to another machine: no device numbers, no folders."""
    return {name: value for name, value in variables.items() if not name.endswith(LOCAL)}


def _matters(name: str) -> bool:
    if any(part in name.split("_") for part in SECRET) or name.startswith(LEFT_OUT):
        return False
    return name.startswith(PREFIXES) and name.isidentifier()
