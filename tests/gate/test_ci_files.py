"""The action, the pre-commit hook and the set-ups in examples/: what they would run is run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from junitparser import JUnitXml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "ci"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository that holds a checkpoint."""
    from mlload.demo.checkpoint import write_demo

    write_demo(tmp_path / "models" / "demo")
    return tmp_path


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """PATH with an `mlload` and a `python3` that are these ones."""
    folder = tmp_path_factory.mktemp("bin")
    for name, words in {"mlload": "-m mlload", "python3": "", "pip": "-m pip"}.items():
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        script.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder), "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT)}


ACTION = yaml.safe_load((ROOT / "action.yml").read_text())


def act(inputs: dict[str, str], project: Path, environment: dict[str, str]) -> tuple[int, str, dict[str, str], str]:
    """Runs the steps of the action as the runner would: exit code, log, outputs, step summary."""
    unknown = inputs.keys() - ACTION["inputs"].keys()
    assert not unknown
    values = {name: str(inputs.get(name, spec["default"])) for name, spec in ACTION["inputs"].items()}
    files = {name: project / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for path in files.values():
        path.write_text("")
    env = {**environment, **{name: str(path) for name, path in files.items()}, "GITHUB_ACTION_PATH": str(ROOT)}
    code, log = 0, ""
    for step in ACTION["runs"]["steps"]:
        if step.get("if") == "inputs.install != ''" and not values["install"]:
            continue
        expanded = {
            name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: values[found[1]], text)
            for name, text in step["env"].items()
        }
        assert "${{" not in step["run"], "an expression inside a script runs its value as code"
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=project, env={**env, **expanded}, capture_output=True, text=True, encoding="utf-8",
        )  # fmt: skip
        code, log = done.returncode, log + done.stdout + done.stderr
        if code:
            break
    outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
    return code, log, outputs, files["GITHUB_STEP_SUMMARY"].read_text()


def test_the_action_says_yes(project: Path, environment: dict[str, str]) -> None:
    code, log, outputs, summary = act({"source": "models/demo\n", "tp": "3", "install": ""}, project, environment)
    assert (code, outputs) == (0, {"exit-code": "0"}), log
    assert "::error" not in log and summary.startswith("### mlload validate: ok")


def test_the_action_says_no_and_keeps_words_together(project: Path, environment: dict[str, str]) -> None:
    inputs = {
        "source": "  models/demo",
        "tp": "1,2",
        "gpu": "rtx 4090",
        "engine": "vllm@0.33",
        "args": "--hf-overrides '{\"rope_theta\": 5}' --ignore CF",
        "sarif": "out.sarif",
        "install": "",
    }
    code, log, outputs, summary = act(inputs, project, environment)
    assert (code, outputs) == (1, {"exit-code": "1"}), log
    assert "::error file=models/demo/config.json,title=TP002 at tp 2::" in log
    assert "RTX 4090" in summary and (project / "out.sarif").exists()


def test_an_input_is_never_code(project: Path, environment: dict[str, str]) -> None:
    for value in ("$(touch broken)", "`touch broken`", "; touch broken", '"; touch broken; "'):
        inputs = {"source": f"models/demo {value}", "gpu": value, "sarif": value, "install": ""}
        assert act(inputs, project, environment)[0] != 0
    assert not (project / "broken").exists()


@pytest.mark.slow
def test_the_action_installs_itself(project: Path, environment: dict[str, str], tmp_path: Path) -> None:
    made = subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], capture_output=True)
    assert made.returncode == 0
    env = {**environment, "PATH": f"{tmp_path / 'venv' / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": ""}
    code, log, _, _ = act({"source": "models/demo", "tp": "3"}, project, env)
    if "No matching distribution" in log or "Could not find a version" in log or "connection" in log.lower():
        pytest.skip("no package index can be reached")
    assert code == 0, log


def test_the_example_workflow(project: Path, environment: dict[str, str]) -> None:
    workflow = yaml.safe_load((EXAMPLES / "github" / "checkpoint.yml").read_text())
    steps = workflow["jobs"]["validate"]["steps"]
    (ours,) = [step for step in steps if "mlload" in step["uses"]]
    code, log, _, _ = act({**{k: str(v) for k, v in ours["with"].items()}, "install": ""}, project, environment)
    assert code == 0, log
    uploaded = next(step["with"]["sarif_file"] for step in steps if "upload-sarif" in step["uses"])
    assert (project / uploaded).exists()


def test_the_example_of_gitlab(project: Path, environment: dict[str, str]) -> None:
    job = yaml.safe_load((EXAMPLES / "gitlab" / ".gitlab-ci.yml").read_text())["checkpoint"]
    for line in job["script"]:
        done = subprocess.run(["bash", "-c", line], cwd=project, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    report = JUnitXml.fromfile(str(project / job["artifacts"]["reports"]["junit"]))
    assert (report.tests, report.failures, report.errors) == (2, 0, 0)


def hooks() -> dict[str, dict[str, Any]]:
    return {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}


def test_the_hook_and_its_example(project: Path, environment: dict[str, str]) -> None:
    (repository,) = yaml.safe_load((EXAMPLES / "pre-commit" / ".pre-commit-config.yaml").read_text())["repos"]
    for used in repository["hooks"]:
        hook = hooks()[used["id"]]
        words = [*shlex.split(hook["entry"]), *used["args"]]
        done = subprocess.run(words, cwd=project, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        wanted = ("models/demo/config.json", "models/demo/model-00001-of-00002.safetensors", "mlload.toml")
        assert all(re.search(hook["files"], name) for name in wanted)
        assert not re.search(hook["files"], "src/main.py")


@pytest.mark.slow
def test_pre_commit_itself(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """pre-commit installs this repository into an environment of its own, which needs a package index."""
    pytest.importorskip("pre_commit")
    if not (ROOT / ".git").exists():
        pytest.skip("not a git repository")
    home = tmp_path_factory.mktemp("home")
    env = {**os.environ, "HOME": str(home), "PRE_COMMIT_HOME": str(home / "pre-commit"), "LC_ALL": "C.UTF-8"}
    repository = project / "models" / "demo"  # hooks run at the root of a repository: here a checkpoint
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a checkpoint"]):
        subprocess.run([*git, *words], cwd=repository, env=env, check=True)
    call = [sys.executable, "-m", "pre_commit", "try-repo", str(ROOT), "mlload-validate", "--all-files", "--verbose"]
    for tp, code, says in (("2", 1, "TP002"), ("3", 0, "vLLM would start at tp 3")):
        (repository / "mlload.toml").write_text(f"tp = {tp}\n")
        done = subprocess.run(call, cwd=repository, env=env, capture_output=True, text=True)
        if "No matching distribution" in done.stdout or "Could not find a version" in done.stdout:
            pytest.skip("no package index can be reached")
        assert done.returncode == code and says in done.stdout, done.stdout + done.stderr


def test_the_example_settings_are_read(project: Path, environment: dict[str, str]) -> None:
    (project / "mlload.toml").write_text((EXAMPLES / "mlload.toml").read_text())
    done = subprocess.run(
        ["mlload", "validate", "models/demo"], cwd=project, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "tp 3 on H100" in done.stdout
