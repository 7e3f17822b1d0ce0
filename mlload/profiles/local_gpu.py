"""The GPU of this machine, as its driver describes it."""

from __future__ import annotations

from mlload.checkpoint.finding import MlloadError
from mlload.profiles.gpus import Gpu

QUERY = ("nvidia-smi", "--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits")
SECONDS = 20


def local_gpu() -> Gpu:
    """The first GPU; of several kinds the one with the least memory, which decides. Raises MlloadError without one."""
    import subprocess

    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=SECONDS, check=False)
    except FileNotFoundError as error:
        raise MlloadError(
            "--gpu local asks the driver (nvidia-smi), and this machine has none",
            hint="name a GPU instead, such as --gpu h100 or --gpu cc:9.0,mem:80",
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MlloadError(f"nvidia-smi did not answer: {error}") from error
    if answer.returncode != 0:
        said = (answer.stderr or answer.stdout).strip().splitlines()
        raise MlloadError(f"nvidia-smi found no GPU: {said[0] if said else f'exit code {answer.returncode}'}")
    found = list(filter(None, map(_gpu, answer.stdout.splitlines())))
    if not found:
        raise MlloadError(f"nvidia-smi said nothing that could be read: {answer.stdout.strip()[:200]!r}")
    return min(found, key=lambda gpu: gpu.memory_gib or 0.0)


def _gpu(line: str) -> Gpu | None:
    """ "NVIDIA H100 80GB HBM3, 9.0, 81559" (MiB)."""
    parts = [part.strip() for part in line.rsplit(",", 2)]
    if len(parts) != 3:
        return None
    name, capability, memory = parts
    major, dot, minor = capability.partition(".")
    if not (dot and major.isdigit() and minor.isdigit() and memory.isdigit()):
        return None
    return Gpu(key="local", name=name, capability=(int(major), int(minor)), memory_gib=int(memory) / 1024)
