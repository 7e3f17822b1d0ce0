"""What `mlload load-test` prints for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlload.cli.layout import wrap
from mlload.cli.output import DEFAULT_WIDTH, Line, Span

STEPS = ("plan", "build", "read", "copy", "repack", "warm_up", "first_token", "towers")


def render(found: dict[str, Any], width: int = DEFAULT_WIDTH) -> Iterator[Line]:
    """One load format."""
    if found["engine"] == "vllm":
        from mlload.cli.load_test_vllm_text import render as render_vllm

        yield from render_vllm(found)
        return
    ranks = f"tp {found['tp']}{' ep' if found.get('ep') else ''}"
    yield [Span(found["source"], "bold"), f"  {found['load_format']}, {ranks}, {found['device']}, "
           f"{found['dtype']}, KV cache {found['kv_cache_dtype']}"]  # fmt: skip
    yield ""
    yield Span("Timeline", "bold")
    timeline = found["timeline"]
    for step in STEPS:
        if step in timeline:
            yield f"  {step.replace('_', ' '):12} {timeline[step]:9.3f} s"
    yield f"  {found['bytes_read'] / 1e9:.3f} GB read, {found['read_gb_per_s']:.2f} GB/s"
    if len(found["loads"]) > 1:
        totals = [sum(load.values()) for load in found["loads"]]
        yield f"  {len(totals)} loads: {min(totals):.3f} to {max(totals):.3f} s"
    yield ""
    yield Span("Memory", "bold")
    yield f"  {'rank':>4} {'predicted':>16} {'measured':>16} {'resident':>16} {'peak host':>11} {'KV cache':>11}"
    for rank in found["ranks"]:
        same = rank["weight_bytes_predicted"] == rank["weight_bytes_measured"]
        yield [
            f"  {rank['rank']:4} {rank['weight_bytes_predicted']:16,} ",
            Span(f"{rank['weight_bytes_measured']:16,}", "good" if same else "bad"),
            f" {rank['resident_bytes']:16,} {rank['peak_host_bytes'] / 2**30:7.2f} GiB",
            f" {rank['kv_bytes'] / 2**20:7.1f} MiB",
        ]
        if rank["peak_device_bytes"]:
            yield f"       {rank['peak_device_bytes'] / 2**30:.2f} GiB on the device at most"
    if (towers := found.get("towers")) is not None:
        what = {"skip": "left out", "lazy": "loaded last"}.get(towers["mode"], "among them")
        yield f"  towers: {towers['weight_bytes_predicted']:,} bytes a rank, {what}"
    yield ""
    yield Span("Kernels", "bold")
    for (kernel, provider), layers in _kernels(found["kernels"]).items():
        yield from wrap(f"{kernel} ({provider}): {', '.join(dict.fromkeys(layers))}", width, "    ", "  ")
    for reason in _declined(found["kernels"]):
        yield from (Span(line, "dim") for line in wrap(reason, width, "      ", "    "))
    if found["sweep"]:
        yield ""
        yield [Span("Pace", "bold"), " of this harness, not of a server"]
        if found.get("shortened"):
            yield from wrap(found["shortened"], width, "  ")
        yield f"  {'batch':>5} {'prefill':>12} {'decode':>12} {'first token':>12} {'p50':>9} {'p99':>9}"
        for pace in found["sweep"]:
            between = pace["inter_token_ms"]
            yield (
                f"  {pace['batch']:5} {pace['prefill_tokens_per_s']:8.1f} t/s {pace['decode_tokens_per_s']:8.1f} t/s "
                f"{pace['first_token_ms']:9.1f} ms {between['p50']:6.1f} ms {between['p99']:6.1f} ms"
            )
    yield from _says(found)
    yield ""
    if found["failures"]:
        for failure in found["failures"]:
            first, *rest = wrap(failure, width, "    ")
            yield [Span("no  ", "bad"), first[4:]]
            yield from rest
    else:
        yield [Span("yes ", "good"), "it loads" + (" and speaks" if (found["speaks"] or {}).get("ok") else "")]


def _says(found: dict[str, Any]) -> Iterator[Line]:
    if found["sample"] is not None:
        yield ""
        yield [Span("Says", "bold"), f"  {found['sample']!r}"]
    elif found["speaks"] is not None and found["speaks"]["ok"] is None:
        yield ""
        yield "There is no tokenizer beside the weights: whether it speaks was not asked."
    if "perplexity" in found:
        one = found["perplexity"]
        yield ""
        yield [
            Span("Perplexity", "bold"),
            f"  {one['value']:.3f} over {one['tokens']:,} tokens ({one['windows']} windows of {one['length']})",
        ]
    if "divergence" in found:
        one = found["divergence"]
        yield (
            f"{one['mean']:.3g} nats from the record (at most {one['highest']:.3g} at one of {one['positions']} "
            f"positions), the same first token at {one['agree']:.1%}"
        )


def _kernels(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        found.setdefault((row["kernel"], row["provider"]), []).append(row["layer"])
    return found


def _declined(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(f"not {one['kernel']}: {one['reason']}" for row in rows for one in row["declined"]))


def side_by_side(documents: list[dict[str, Any]]) -> Iterator[Line]:
    """Several load formats, one line each."""
    yield Span("Side by side", "bold")
    yield f"  {'load_format':16} {'build':>9} {'read':>9} {'repack':>9} {'GB read':>9} {'GB/s':>7}"
    for one in documents:
        times = one["timeline"]
        yield (
            f"  {one['load_format']:16} {times.get('build', 0.0):7.2f} s "
            f"{times.get('read', 0.0) + times.get('copy', 0.0):7.2f} s "
            f"{times.get('repack', 0.0):7.2f} s {one['bytes_read'] / 1e9:9.3f} {one['read_gb_per_s']:7.2f}"
        )
