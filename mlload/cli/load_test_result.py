"""`mlload load-test`, without a screen: one JSON object out of what the ranks measured, and what it falls short of."""

from __future__ import annotations

from typing import Any, NamedTuple

SCHEMA = 1


class Thresholds(NamedTuple):
    """None where none was given. max_kl: nats, mean over positions of the record."""

    max_load_seconds: float | None = None
    min_decode_tps: float | None = None
    max_peak_gib: float | None = None
    max_kl: float = 0.1
    max_perplexity: float | None = None


def document(source: str, device: str, ranks: list[dict[str, Any]], thresholds: Thresholds) -> dict[str, Any]:
    """One load format's result. Times of the slowest rank, bytes of all."""
    lead = ranks[0]
    timeline = {key: max(rank["timeline"].get(key, 0.0) for rank in ranks) for key in lead["timeline"]}
    seconds = max(rank["read_seconds"] for rank in ranks)
    total = sum(rank["bytes_read"] for rank in ranks)
    found: dict[str, Any] = {
        "schema_version": SCHEMA,
        "source": source,
        "engine": "native",
        "throughput_of": "harness",
        "tp": len(ranks),
        "ep": lead.get("ep", False),
        "device": device,
        "load_format": lead["load_format"],
        "dtype": lead["dtype"],
        "kv_cache_dtype": lead["kv_cache_dtype"],
        "timeline": timeline,
        "load_seconds": sum(timeline.get(key, 0.0) for key in ("plan", "build", "read", "copy", "repack")),
        "loads": lead["loads"],
        "bytes_read": total,
        "read_gb_per_s": total / seconds / 1e9 if seconds else 0.0,
        "ranks": [
            {
                key: value
                for key, value in rank.items()
                if key not in ("sweep", "shortened", "record", "kernels", "loads", "perplexity")
            }
            for rank in ranks
        ],
        "sweep": lead["sweep"],
        "shortened": lead.get("shortened"),
        "kernels": lead["kernels"],
        "not_run": [row["layer"] for row in lead["kernels"] if not row["packed"]],
        "speaks": lead["speaks"],
        "sample": lead["sample"],
    }
    if "towers" in lead:
        found["towers"] = lead["towers"]
    if "divergence" in lead:
        found["divergence"] = {**lead["divergence"], "limit": thresholds.max_kl}
    if "perplexity" in lead:
        found["perplexity"] = lead["perplexity"]
    found["failures"] = failures(found, thresholds)
    return found


def failures(found: dict[str, Any], thresholds: Thresholds) -> list[str]:
    """One sentence for everything that makes exit 1."""
    said = []
    if thresholds.max_load_seconds is not None and found["load_seconds"] > thresholds.max_load_seconds:
        said.append(f"loading took {found['load_seconds']:.1f} s, allowed are {thresholds.max_load_seconds:g} s")
    best = max((pace["decode_tokens_per_s"] for pace in found["sweep"]), default=None)
    if thresholds.min_decode_tps is not None and best is not None and best < thresholds.min_decode_tps:
        said.append(f"decode reached {best:.1f} tokens/s, wanted are {thresholds.min_decode_tps:g}")
    if thresholds.max_peak_gib is not None:
        kind = "device" if found["device"] == "cuda" else "host"
        peak = max((rank[f"peak_{kind}_bytes"] for rank in found["ranks"]), default=0)
        if peak > thresholds.max_peak_gib * 2**30:
            said.append(f"{kind} memory reached {peak / 2**30:.2f} GiB, allowed are {thresholds.max_peak_gib:g} GiB")
    # A real engine's kernels keep weights in layouts of their own: what it holds is told beside the prediction.
    for rank in found["ranks"] if found["engine"] == "native" else ():
        predicted, measured = rank["weight_bytes_predicted"], rank["weight_bytes_measured"]
        if predicted != measured:
            said.append(
                f"rank {rank['rank']}: {predicted:,} bytes of weights were predicted, {measured:,} are allocated"
            )
        towers = rank.get("towers", {})
        if towers.get("weight_bytes_measured", towers.get("weight_bytes_predicted")) != towers.get(
            "weight_bytes_predicted"
        ):
            said.append(
                f"rank {rank['rank']}: {towers['weight_bytes_predicted']:,} bytes of towers were predicted, "
                f"{towers['weight_bytes_measured']:,} are allocated"
            )
    if found["not_run"]:
        said.append(f"{', '.join(found['not_run'])}: unpacked when loaded, which no production kernel does")
    if found["speaks"] is not None and found["speaks"]["ok"] is False:
        said.append("it does not speak: " + "; ".join(found["speaks"]["reasons"]))
    divergence = found.get("divergence")
    if divergence is not None and not divergence["mean"] <= divergence["limit"]:
        said.append(f"it differs from the record by {divergence['mean']:.3g} nats, allowed are {divergence['limit']:g}")
    limit = thresholds.max_perplexity
    if limit is not None and "perplexity" in found and not found["perplexity"]["value"] <= limit:
        said.append(f"perplexity is {found['perplexity']['value']:.3f}, allowed are {limit:g}")
    return said


def against(found: dict[str, Any], baseline: dict[str, Any], slack: float = 0.1) -> list[str]:
    """What is worse than in an earlier result by more than `slack`, one sentence each."""
    said = []
    for key, name in (("load_seconds", "loading"),):
        before, now = baseline.get(key), found[key]
        if before and now > before * (1 + slack):
            said.append(f"{name} took {now:.1f} s, {before:.1f} s in the baseline")
    paces = {pace["batch"]: pace for pace in baseline.get("sweep", [])}
    for pace in found["sweep"]:
        earlier = paces.get(pace["batch"])
        if earlier is None:
            continue
        for key, name in (("decode_tokens_per_s", "decode"), ("prefill_tokens_per_s", "prefill")):
            if pace[key] < earlier[key] * (1 - slack):
                said.append(
                    f"{name} of batch {pace['batch']}: {pace[key]:.1f} tokens/s, {earlier[key]:.1f} in the baseline"
                )
    return said
