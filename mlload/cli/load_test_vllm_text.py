"""What `mlload load-test --engine vllm` prints for people: the answer, prediction against fact, and the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mlload.cli.layout import Cell, table, wrap
from mlload.cli.output import DEFAULT_WIDTH, Line, Span
from mlload.cli.quantities import size

STEPS = {
    "import": "import vllm",
    "config": "read the config",
    "processes": "start processes",
    "distributed": "connect ranks",
    "build": "build the model",
    "read": "read weights",
    "repack": "repack weights",
    "compile": "compile",
    "profile": "measure memory",
    "cache": "allocate the cache",
    "warm_up": "warm up",
    "serve": "be ready",
    "first_token": "first token",
}
NAMES = {"weight_bytes": "weight bytes", "kv_tokens": "KV tokens", "verdict": "verdict"}
WORDS = {True: Span("same", "good"), False: Span("DIFFERS", "bad"), None: Span("-", "dim")}


def render(found: dict[str, Any]) -> Iterator[Line]:
    """One start of the engine."""
    yield from head(found)
    yield ""
    yield from answer(found)
    yield ""
    yield from against(found["prediction"])
    if found["ranks"]:
        yield ""
        yield from memory(found)
    if found["sweep"]:
        yield ""
        yield from pace(found["sweep"])
    if found["timeline"]:
        yield ""
        yield from times(found)
    yield ""
    yield f"engine's log: {found['engine_log']}"


def head(found: dict[str, Any]) -> Iterator[Line]:
    sizes = f"tp {found['tp']}" + (f", pp {found['pp']}" if found["pp"] > 1 else "") + (", ep" if found["ep"] else "")
    device = found["device_name"] or found["device"] or "nothing known"
    dtype = f", {found['dtype']}, KV cache {found['kv_cache_dtype']}" if found["dtype"] else ""
    yield [Span(str(found["source"]), "bold"), f"  vLLM {found['engine_version']}, {sizes} on {device}{dtype}"]
    yield Span(f"{found['engine_distribution']}, {found['engine_python']}", "dim")


def answer(found: dict[str, Any]) -> Iterator[Line]:
    """Whether it starts and speaks, or why not."""
    if found["failures"]:
        for failure in found["failures"]:
            first, *rest = wrap(failure, DEFAULT_WIDTH - 6)
            yield [Span("FAIL  ", "bad"), first]
            yield from (f"      {line}" for line in rest)
    else:
        speaks = (found["speaks"] or {}).get("ok")
        yield [Span("OK    ", "good"), "it starts" + (" and speaks" if speaks else "")]
    if found["sample"] is not None:
        first, *rest = wrap(repr(found["sample"]), DEFAULT_WIDTH - 6)
        yield f"says  {first}"
        yield from (f"      {line}" for line in rest)
    elif found["speaks"] is not None and found["speaks"]["ok"] is None:
        yield "      There is no tokenizer that reads: whether it speaks was not asked."
    if "divergence" in found:
        one = found["divergence"]
        yield (
            f"      {one['mean']:.3g} nats from the record (at most {one['highest']:.3g} at one of "
            f"{one['positions']} positions),"
        )
        yield f"      the same first token at {one['agree']:.1%}"


def against(prediction: dict[str, Any]) -> Iterator[Line]:
    """Prediction beside fact."""
    if prediction["missing"]:
        yield Span("Prediction against fact", "bold")
        yield from (f"  {line}" for line in wrap(f"Nothing was predicted: {prediction['missing']}", DEFAULT_WIDTH - 2))
        return
    yield [Span("Prediction against fact", "bold"), f"  (mlload validate --engine vllm@{prediction['profile']})"]
    rows = [row for row in prediction["rows"] if row["what"] != "kernel"]
    cells: list[Sequence[Cell]] = [("  ", "predicted", "measured", "difference", "")]
    for row in rows:
        name = NAMES[row["what"]] + (f", {row['where']}" if row["where"] else "")
        cells.append((f"  {name}", figure(row["predicted"]), figure(row["measured"]), difference(row), word(row)))
    yield from table(cells, right=(False, True, True, True, False))
    for row in rows:
        if row["note"]:
            what = NAMES[row["what"]] + (f", {row['where']}" if row["where"] else "")
            yield from wrap(f"{what}: {row['note']}", DEFAULT_WIDTH, "    ", "  ")
    yield from kernels([row for row in prediction["rows"] if row["what"] == "kernel"])


def word(row: dict[str, Any]) -> Span:
    """A kernel's own layout may take a little more than was predicted."""
    return Span("within 1 %", "good") if row["agrees"] and row["difference"] else WORDS[row["agrees"]]


def figure(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return " to ".join(figure(one) for one in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def difference(row: dict[str, Any]) -> str:
    if row["difference"] is None:
        return ""
    share = ""
    if row["difference"] and isinstance(row["predicted"], int) and row["predicted"]:
        share = f" ({row['difference'] / row['predicted']:+.2%})"
    return f"{row['difference']:+,}{share}" if row["difference"] else "0"


def kernels(rows: list[dict[str, Any]]) -> Iterator[Line]:
    """Layers of one kernel in one line; what differs, with both."""
    same: dict[str, list[str]] = {}
    for row in rows:
        layer = row["where"].partition("[")[2].removesuffix("]") or row["where"]
        if row["agrees"]:
            same.setdefault(row["predicted"], []).append(layer)
        elif row["agrees"] is False:
            yield from wrap(
                f"kernel of {layer} DIFFERS: predicted {row['predicted']}, is {row['measured']}",
                DEFAULT_WIDTH, "    ", "  ",
            )  # fmt: skip
        elif row["measured"] is not None:
            yield from wrap(f"kernel of {layer}, not predicted: {row['measured']}", DEFAULT_WIDTH, "    ", "  ")
    for label, layers in same.items():
        method, _, kernel = label.rpartition("/")
        via = f" ({method.rpartition('/')[2]})" if method else ""
        yield from wrap(f"as predicted: {kernel}{via} runs {', '.join(layers)}", DEFAULT_WIDTH, "    ", "  ")


def memory(found: dict[str, Any]) -> Iterator[Line]:
    yield Span("Memory", "bold")
    device = any(rank["peak_device_bytes"] for rank in found["ranks"])
    rows: list[Sequence[Cell]] = [
        ("  rank", "weights", "with copies", "KV cache", "peak on device" if device else "peak of process")
    ]
    for rank in found["ranks"]:
        peak = rank["peak_device_bytes"] if device else rank["peak_host_bytes"]
        rows.append(
            (
                f"  {rank['rank']}",
                size(rank["weight_bytes_measured"]),
                size(rank["resident_bytes"]),
                size(rank["kv_bytes"]),
                size(peak),
            )
        )
    yield from table(rows, right=(False, True, True, True, True))


def pace(sweep: list[dict[str, Any]]) -> Iterator[Line]:
    yield [Span("Pace", "bold"), f" of the engine, prompts of {sweep[0]['prompt_len']} tokens, "
           f"{sweep[0]['decode']} to decode"]  # fmt: skip
    yield f"  {'batch':>5} {'prefill':>12} {'decode':>12} {'first token':>12} {'p50':>9} {'p99':>9}"
    for one in sweep:
        between = one["inter_token_ms"]
        yield (
            f"  {one['batch']:5} {one['prefill_tokens_per_s']:8.1f} t/s {one['decode_tokens_per_s']:8.1f} t/s "
            f"{one['first_token_ms']:9.1f} ms {between['p50']:6.1f} ms {between['p99']:6.1f} ms"
        )


def times(found: dict[str, Any]) -> Iterator[Line]:
    """Steps of the start that took a tenth of a second or more."""
    loaded = f", loaded in {found['load_seconds']:.1f} s" if found["load_seconds"] else ""
    up = f"  up after {found['start_seconds']:.1f} s{loaded}" if found["start_seconds"] else ""
    yield [Span("Start", "bold"), up]
    steps = [f"{STEPS[step]} {seconds:.1f} s" for step, seconds in found["timeline"].items() if seconds >= 0.05]
    yield from wrap(", ".join(steps), DEFAULT_WIDTH, "  ")
    if found["bytes_read"] and found["read_gb_per_s"]:
        yield f"  {found['bytes_read'] / 1e9:.3f} GB of weights in the files, {found['read_gb_per_s']:.2f} GB/s"
