"""`validate` as a gate, by its command line: settings, selection, waivers, locks, the engine's own commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.conftest import Run, llama, mlload, write_llama

__all__ = ["llama", "mlload"]  # fixtures

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "validate-1.json").read_text())


def validated(mlload: Run, *words: str | Path, code: int, **kwargs: Any) -> dict[str, Any]:
    at = words.index("--") if "--" in words else len(words)
    done = mlload("validate", "--format", "json", *words[:at], *words[at:], **kwargs)
    assert done.returncode == code, done.stderr or done.stdout
    document: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    return document


# The checkpoint of these tests has 6 heads and 2 KV heads: tp 4 breaks TP001 for the 6 heads, tp 2 is fine.
def test_the_command_that_people_have(mlload: Run, llama: Path) -> None:
    shown = validated(
        mlload, "--", "VLLM_USE_V1=1", "vllm", "serve", llama, "-tp", "4", "--max_model_len=1k", "--enforce-eager",
        "--enable-prefix-caching", "--served-model-name", "a", "b", code=1,
    )  # fmt: skip
    (result,) = shown["results"]
    assert (result["source"], result["tp"]) == (str(llama), 4)
    assert shown["not_judged"] == ["--enable-prefix-caching", "--served-model-name a b", "VLLM_USE_V1=1"]
    assert result["serve"].startswith(f"VLLM_USE_V1=1 vllm serve {llama} ")
    assert "--max_model_len=1k --enforce-eager --enable-prefix-caching --served-model-name a b" in result["serve"]
    assert "-tp 4" not in result["serve"]
    mine = validated(mlload, "--tp", "2", "--", "vllm", "serve", llama, "-tp", "4", code=0)  # typed before it: wins
    assert mine["results"][0]["tp"] == 2
    named = validated(mlload, llama, "--", "vllm", "serve", "--port", "80", "-tp", "2", code=0)
    assert named["results"][0]["serve"] == f"vllm serve {llama} --port 80 -tp 2"


def test_its_flags_among_ours(mlload: Run, llama: Path) -> None:
    shown = validated(mlload, llama, "-tp", "2", "--served-model-name=x", "--no-enable-prefix-caching", "-O3", code=0)
    assert shown["not_judged"] == ["--served-model-name=x", "--no-enable-prefix-caching", "-O3"]
    assert shown["results"][0]["serve"].endswith("--served-model-name=x --no-enable-prefix-caching -O3")
    done = mlload("validate", llama, "--no-such-flag", "3")
    assert done.returncode == 2 and "--no-such-flag" in done.stderr


def test_what_the_engine_would_refuse_of_its_own_line(mlload: Run, llama: Path) -> None:
    (result,) = validated(mlload, "--", "vllm", "serve", llama, "--tensor-paralel-size", "2", code=1)["results"]
    assert (result["starts"], result["verdict"]) == (False, "fail")
    assert result["findings"][0]["code"] == "EN050"
    assert "--tensor-parallel-size" in result["findings"][0]["hints"][0]["what"]
    assert result["serve"] == f"vllm serve {llama}"
    # Removed between the two versions: what starts on one is refused by the next.
    validated(mlload, "--engine", "vllm@0.32", "--", "vllm", "serve", llama, "--disable-prefix-caching", code=1)
    validated(mlload, "--engine", "vllm@0.33", "--", "vllm", "serve", llama, "--disable-prefix-caching", code=0)


def test_the_engines_yaml(mlload: Run, llama: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text(
        f"model: {llama}\ntensor_parallel_size: 4\nserved-model-name: [a, b]\nenable-prefix-caching: false\n"
    )
    shown = validated(mlload, "--serve-config", config, code=1)
    assert (shown["results"][0]["source"], shown["results"][0]["tp"]) == (str(llama), 4)
    assert shown["not_judged"] == ["--served-model-name a b", "--no-enable-prefix-caching"]
    assert shown["results"][0]["serve"] == (
        f"vllm serve --config {config} --tensor-parallel-size 2 --pipeline-parallel-size 2"
    )
    # The command line wins over the file, as it does there.
    (result,) = validated(mlload, "--", "vllm", "serve", llama, "--config", config, code=1)["results"]
    assert result["tp"] == 4 and result["serve"].startswith(f"vllm serve {llama} --config {config} ")
    validated(mlload, "--", "vllm", "serve", llama, "--config", config, "-tp", "2", code=0)


def test_overrides_of_the_config_are_made_before_judging(mlload: Run, llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    validated(mlload, llama, "--tp", "4", code=1)
    words = ("--hf-overrides", '{"num_attention_heads": 8, "num_key_value_heads": 4}')
    validated(mlload, llama, "--tp", "4", *words, code=0)
    validated(mlload, "--", "vllm", "serve", llama, "-tp", "4", *words, code=0)
    dotted = ("--hf-overrides.num_attention_heads", "8", "--hf-overrides.num_key_value_heads", "4")
    validated(mlload, "--", "vllm", "serve", llama, "-tp", "4", *dotted, code=0)
    assert mlload("validate", llama, "--hf-overrides", "[1]").returncode == 2


def test_layers_of_stages_by_the_engines_variable(mlload: Run, llama: Path) -> None:
    line = ("vllm", "serve", llama, "-pp", "2")
    validated(mlload, "--", "VLLM_PP_LAYER_PARTITION=1,1", *line, code=0)
    found = validated(mlload, "--", "VLLM_PP_LAYER_PARTITION=1,2", *line, code=1)["results"][0]["findings"]
    assert "TP011" in [finding["code"] for finding in found]


def test_selection(mlload: Run, llama: Path) -> None:
    (result,) = validated(mlload, llama, "--tp", "4", "--ignore", "TP001", code=0)["results"]
    # What counts is the gate's business; what the engine does is not changed by it.
    assert (result["starts"], result["verdict"], result["ignored"] >= 1) == (False, "ok", True)
    validated(mlload, llama, "--tp", "4", "--ignore", "TP", code=0)
    validated(mlload, llama, "--tp", "4", "--select", "CF", code=0)
    validated(mlload, llama, "--tp", "4", "--select", "TP001", code=1)
    done = mlload("validate", llama, "--ignore", "TP999")
    assert done.returncode == 2 and "TP999" in done.stderr
    assert "left out by --select and --ignore" in mlload("validate", llama, "--tp", "4", "--ignore", "TP").stdout


WAIVER = '[[waive]]\ncode = "TP001"\npath = "*"\nreason = "our fork pads heads"\nuntil = {}\n'


def test_waivers(mlload: Run, llama: Path, tmp_path: Path) -> None:
    config = tmp_path / "mlload.toml"
    config.write_text(WAIVER.format("2999-01-01"))
    (result,) = validated(mlload, llama, "--tp", "4", code=0)["results"]
    assert result["findings"] == [] or all(f["code"] != "TP001" for f in result["findings"])
    (waived,) = result["waived"]
    assert (waived["code"], waived["waiver"]["reason"], waived["waiver"]["until"]) == (
        "TP001", "our fork pads heads", "2999-01-01"
    )  # fmt: skip
    shown = mlload("validate", llama, "--tp", "4").stdout
    assert "OK  vLLM would refuse to start at tp 4, which is waived or left out" in shown
    assert "waived  TP001" in shown and "until 2999-01-01: our fork pads heads." in shown
    config.write_text(WAIVER.format("2020-01-01"))
    (result,) = validated(mlload, llama, "--tp", "4", code=1)["results"]
    assert result["waived"] == [] and {"TP001", "GT001"} <= {f["code"] for f in result["findings"]}


def test_settings_and_overrides(mlload: Run, llama: Path, tmp_path: Path) -> None:
    other = write_llama(tmp_path / "draft-eight", num_attention_heads=8)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.mlload]\ntp = [2, 4]\ngpu = "cc:9.0"\n'
        '[[tool.mlload.override]]\npath = "draft-*"\ntp = 4\ngpu = "cc:8.0"\n'
    )
    results = validated(mlload, llama, other, code=1)["results"]
    assert [(r["tp"], r["gpu"], r["verdict"]) for r in results] == [
        (2, "cc:9.0", "ok"), (4, "cc:9.0", "fail"), (4, "cc:8.0", "ok"),
    ]  # fmt: skip
    validated(mlload, llama, "--tp", "1", code=0)  # the command line wins
    assert "tp 4 on compute capability 8.0" in mlload("validate", other).stdout
    (tmp_path / "pyproject.toml").write_text("[tool.mlload]\ngpus = 1\n")
    done = mlload("validate", llama)
    assert done.returncode == 2 and "did you mean gpu" in done.stderr


def test_a_lock(mlload: Run, llama: Path, tmp_path: Path) -> None:
    lock = tmp_path / "approved.json"
    assert mlload("validate", llama, "--tp", "4", "--lock", lock).returncode == 1
    assert not lock.exists()
    assert mlload("validate", llama, "--tp", "1,2", "--lock", lock).returncode == 0
    before = lock.read_text()
    assert mlload("validate", llama, "--tp", "1,2", "--lock", lock).returncode == 0
    assert lock.read_text() == before
    validated(mlload, llama, "--tp", "2", "--against", lock, code=0)
    not_approved = validated(mlload, llama, "--tp", "2", "--gpu", "cc:8.0", "--against", lock, code=1)
    assert [f["code"] for f in not_approved["results"][0]["findings"] if f["severity"] == "error"] == ["LK005"]
    validated(mlload, llama, "--tp", "2", "--engine", "vllm@0.32", "--against", lock, code=1)
    (llama / "README.md").write_text("words\n")
    validated(mlload, llama, "--tp", "2", "--against", lock, code=0)
    data = bytearray((llama / "model.safetensors").read_bytes())
    data[-1] ^= 1  # one bit of one weight
    (llama / "model.safetensors").write_bytes(data)
    (result,) = validated(mlload, llama, "--tp", "2", "--against", lock, code=1)["results"]
    (error,) = [f for f in result["findings"] if f["severity"] == "error"]
    assert (error["code"], error["where"], result["starts"]) == ("LK001", "model.safetensors", True)


def test_an_upgrade(mlload: Run, llama: Path) -> None:
    shown = validated(mlload, llama, "--tp", "2,4", "--engine", "vllm@0.32,vllm@0.33", code=1)
    assert shown["engine"]["version"].startswith("0.33")
    (upgrade,) = shown["upgrades"]
    assert (upgrade["from"]["version"][:4], upgrade["to"]["version"][:4]) == ("0.32", "0.33")
    assert upgrade["changes"] and {"subject", "name", "what", "concerns"} <= upgrade["changes"][0].keys()
    assert upgrade["verdicts"] == []
    text = mlload("validate", llama, "--engine", "vllm@0.32,vllm@0.33").stdout
    assert "from vllm@0.32.0 to vllm@0.33.0" in text and "the answer stays the same" in text


def test_engines_without_facts_say_so(mlload: Run, llama: Path) -> None:
    (result,) = validated(mlload, llama, "--engine", "transformers", "--tp", "2", code=3)["results"]
    assert result["verdict"] == "unknown" and "tensor parallelism" in result["unknowns"][0]["what"]
    validated(mlload, llama, "--engine", "transformers", code=0)
    validated(mlload, llama, "--engine", "native", code=3)


@pytest.mark.parametrize("words", [("--", "echo", "--x"), ("--serve-config", "nowhere.yaml"), ("--against", "nowhere")])
def test_wrong_usage_is_one_sentence(mlload: Run, llama: Path, words: tuple[str, ...]) -> None:
    done = mlload("validate", *([] if words[0] == "--" else [llama]), *words)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr


def test_plain_validate_imports_nothing_of_the_gate_or_the_formats(llama: Path) -> None:
    import subprocess
    import sys

    code = f"import sys\nfrom mlload.cli.app import main\nmain(['validate', {str(llama)!r}])\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=llama.parent)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not {m for m in loaded if m.startswith(("mlload.cli.report", "mlload.gate.lock", "mlload.gate.digests"))}
    assert not loaded & {"mlload.profiles.serve_flags", "mlload.cli.validate_gate", "yaml", "tomllib", "hashlib.blake"}


def test_every_option_is_ours_or_the_engines() -> None:
    """An option under a name of the engine is judged wherever the engine's flag stands; one that is neither would be
    written into the command that is shown."""
    from mlload.cli.serve_command import ServeCommand, engine_name
    from mlload.cli.validate import command
    from mlload.profiles import load
    from mlload.profiles.serve_flags import flag_table

    assert isinstance(command, ServeCommand)
    known = flag_table(load("vllm", "0.33")).by_spelling
    params = {name: param for name, param in ((p.name, p) for p in command.params) if name != "sources"}
    theirs = {name for name, param in params.items() if f"--{engine_name(param)}" in known}  # type: ignore[arg-type]
    assert params.keys() - theirs == command.own


WORDS = [
    "--", "vllm", "serve", "docker", "run", "--tp", "-tp", "0", "x", "--config", "-v", "--hf-overrides", "{", "-O",
    "-ep", "--hf-overrides.a", "--no-enable-prefix-caching", "--served-model-name", "=", "--=", "-", "", "--engine",
    "vllm@1", "--select", "TP", "--dtype=", "--max-model-len", "-1", "\ud800", "A=B", "-c", "vllm serve m",
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=7))
def test_no_words_end_in_a_traceback(words: list[str]) -> None:
    from io import StringIO

    from mlload.cli.app import main
    from mlload.cli.output import Output

    out = Output(StringIO(), StringIO())
    code = main(["validate", *words], out)
    assert code in (0, 1, 2, 3) and "internal error" not in out.stderr.getvalue()  # type: ignore[attr-defined]


@pytest.mark.network_servers
def test_a_lock_of_the_hub_downloads_no_weights(mlload: Run, tmp_path: Path) -> None:
    """The Hub says the sha256 of what it stores apart; only the small files are read."""
    import hashlib

    from tests.servers.hub import HubServer

    folder = write_llama(tmp_path / "hub" / "org" / "name")
    lock = tmp_path / "lock.json"
    with HubServer(tmp_path / "hub") as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
        done = mlload("validate", "org/name", "--tp", "2", "--lock", lock, env=env)
        assert done.returncode == 0, done.stderr
        sent = sum(count for name, count in hub.bytes_sent.items() if name.endswith(".safetensors"))
    weights = folder / "model.safetensors"
    assert sent < weights.stat().st_size // 2
    (model,) = json.loads(lock.read_text())["models"]
    digests = {row["name"]: row["sha256"] for row in model["files"]}
    for name in ("config.json", "tokenizer.json"):
        assert digests[name] == hashlib.sha256((folder / name).read_bytes()).hexdigest()
    # The server's word for it, which is of the name here: nothing else could have been known.
    assert digests["model.safetensors"] == hashlib.sha256(b"model.safetensors").hexdigest()
    assert model["revision"] == hub.commit("org/name")
