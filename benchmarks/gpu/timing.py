"""Times of GPU work as production sees it: weights from memory, launches from a graph, medians.

Each call of a case uses another copy of the weights, so many that they exceed the L2 cache several times over. All
calls are captured in one CUDA graph, which is replayed; a time is the graph's over the calls in it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

ROTATED = 200 << 20
REPLAYS = 7


def copies(nbytes: int) -> int:
    """How many copies of a weight of this size are rotated through."""
    return max(2, min(64, -(-ROTATED // max(nbytes, 1))))


def seconds(calls: Sequence[Callable[[], object]]) -> float:
    """Median time of one call, over replays of a graph of all of them."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in (calls[0], *calls[:2]):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(REPLAYS + 2):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / 1e3 / len(calls))
    return statistics.median(times[2:])


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of copying 1 GiB: the ceiling that a kernel's bytes are compared with."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds([lambda: target.copy_(source)])


def matmul_rate() -> float:
    """Operations a second of a large bf16 product by the library."""
    a, b = (torch.randn(8192, 8192, device="cuda").to(torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / seconds([lambda: a @ b])
