"""The command that people already have: `vllm serve MODEL ...` in any of its usual wrappings, taken apart."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlload.checkpoint.finding import Finding, MlloadError
from mlload.profiles.serve_flags import FlagTable
from mlload.profiles.serve_words import Given, read_words, unknown

SERVER = re.compile(r"vllm\.entrypoints\.(openai\.)?(api_server|grpc_server)")
# What a shell takes for itself in a line that was quoted as a whole.
BETWEEN = frozenset({"&&", "||", "|", "|&", ";", "&"})
REDIRECTION = re.compile(r"(\d*(>>?|<)&?|&>>?)(?P<target>[^<>&]*)")
VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
SIZES = {
    "tensor-parallel-size": "tp",
    "pipeline-parallel-size": "pp",
    "data-parallel-size": "dp",
    "enable-expert-parallel": "ep",
}
DEFAULTS: dict[str, Any] = dict.fromkeys(SIZES, 1) | {"enable-expert-parallel": False}
# Docker's options that take no value; what else starts with a dash takes the next word.
DOCKER_SWITCHES = {"--rm", "-d", "--detach", "-i", "-t", "-it", "-ti", "--interactive", "--tty", "--init",
                   "--privileged", "--read-only", "-dit", "-itd"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServeLine:
    """A serve command.

    before:   words up to the model: environment, launcher, "vllm serve"
    model:    as the engine would be given it, None where none is named in the line
    source:   where that is here (a container's path followed through its mounts), or what a config file names
    given:    flags in order
    variables: environment variables of the line that vLLM reads
    findings: what the engine would refuse about the line itself
    """

    before: tuple[str, ...]
    model: str | None
    source: str | None
    given: tuple[Given, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    findings: tuple[Finding, ...] = ()

    def value(self, name: str, default: Any = None) -> Any:
        """The last value of a flag by its long name."""
        return next((entry.value for entry in reversed(self.given) if entry.name == name), default)

    def at(
        self,
        *,
        tp: int,
        pp: int,
        dp: int,
        ep: bool,
        max_model_len: int | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> str | None:
        """The same line at other sizes: every other word as it was typed, but for what the engine would refuse.
        more: other flags that take a value of their own, by their long names. None where what has to change stands in
        the line's config file: no word of the line takes it away."""
        if any(not entry.words and (not entry.known or entry.value is None) for entry in self.given):
            return None
        wanted: dict[str, Any] = {
            "tensor-parallel-size": tp,
            "pipeline-parallel-size": pp,
            "data-parallel-size": dp,
            "enable-expert-parallel": ep,
            **(more or {}),
        }
        if max_model_len is not None:
            wanted["max-model-len"] = max_model_len
        words = [*self.before]
        if self.model is not None and not any(entry.name == "model" and entry.words for entry in self.given):
            words.append(self.model)
        last = {entry.name: entry for entry in self.given}
        for entry in self.given:
            if not entry.known or entry.value is None:
                continue
            if entry.name not in wanted:
                words += entry.words
            elif last[entry.name] is entry and entry.words:
                words += _sized(entry, wanted[entry.name])
        for name, value in wanted.items():
            stated = last[name].value if name in last else DEFAULTS.get(name)
            if value != stated and not (name in last and last[name].words):
                words += _stated(name, value)
        return shlex.join(words)


def _stated(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]


def _sized(entry: Given, value: Any) -> list[str]:
    if entry.value == value:
        return list(entry.words)
    if isinstance(value, bool):
        return [f"--{entry.name}"] if value else []
    if value == 1:
        return []
    spelling, equals, _ = entry.words[0].partition("=")
    return [f"{spelling}={value}"] if equals else [spelling, str(value)]


def read_line(words: Sequence[str], table: FlagTable) -> ServeLine:
    """A serve command as words, or as one quoted word.

    Raises MlloadError where no server is started by it.
    """
    if len(words) == 1 and " " in words[0].strip():
        try:
            words = one_command(shlex.split(words[0].replace("\\\n", " "), comments=True))
        except ValueError as error:
            raise MlloadError(f"the command after -- cannot be taken apart: {error}") from None
    words = [word for word in words if word.strip() or word == ""]
    inner = next((word for word in words if "vllm" in word and " " in word and word != words[0]), None)
    if inner is not None and "-c" in words:  # bash -c "vllm serve ..."
        return read_line([inner], table)
    start = _start(words)
    before = tuple(words[:start])
    read = read_words(words[start:], table)
    variables = tuple((name, value) for name, _, value in _variables(before) if name.startswith("VLLM_"))
    named = [entry for entry in read.given if entry.name == "model" and isinstance(entry.value, str)]
    model = named[-1].value if named else (read.positional[0] if read.positional else None)
    return ServeLine(
        before=before,
        model=model,
        source=None if model is None else _outside(model, before),
        given=read.given,
        variables=variables,
        findings=(*read.findings, *(unknown(word, table) for word in read.positional[0 if named else 1 :])),
    )


def one_command(words: Sequence[str]) -> list[str]:
    """Of a shell's line the command that starts a server: `cd x && vllm serve m > log 2>&1 &` holds one."""
    commands: list[list[str]] = [[]]
    target = False
    for word in words:
        if target:
            target = False
        elif word in BETWEEN:
            commands.append([])
        elif match := REDIRECTION.fullmatch(word):
            target = not match["target"]
        else:
            commands[-1].append(word)
    return next((command for command in commands if starts_server(command)), list(words))


def starts_server(words: Sequence[str]) -> bool:
    try:
        _start(words)
    except MlloadError:
        return "-c" in words  # bash -c "vllm serve ..."
    return True


def _start(words: Sequence[str]) -> int:
    """Where the server's own words begin."""
    for at, word in enumerate(words):
        if word == "serve" and at and os.path.basename(words[at - 1]) == "vllm":
            return at + 1
        if SERVER.fullmatch(word) and at and words[at - 1] == "-m":
            return at + 1
    image = _image(words)
    if image is not None:
        rest = words[image + 1 :]
        return image + 1 + (1 if rest[:1] == ["serve"] else 0)
    if words and words[0] == "serve":
        return 1
    raise MlloadError(
        "no server is started by the command after --",
        hint="mlload validate -- vllm serve MODEL --tensor-parallel-size 8",
    )


def _image(words: Sequence[str]) -> int | None:
    """The image of a `docker run` (podman, nerdctl) line."""
    runner = next(
        (at for at, word in enumerate(words) if os.path.basename(word) in ("docker", "podman", "nerdctl")), None
    )
    if runner is None or "run" not in words[runner:]:
        return None
    at = words.index("run", runner) + 1
    while at < len(words):
        word = words[at]
        if not word.startswith("-"):
            return at
        at += 1 if "=" in word or word in DOCKER_SWITCHES else 2
    return None


def _variables(words: Sequence[str]) -> list[tuple[str, str, str]]:
    """NAME=value words, and those after docker's -e."""
    return [word.partition("=") for word in words if VARIABLE.fullmatch(word)]


def _outside(model: str, words: Sequence[str]) -> str:
    """A path inside a container as the folder that is mounted there."""
    mounts: list[tuple[str, str]] = []
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        if not equals and at + 1 < len(words):
            value = words[at + 1]
        if option in ("-v", "--volume") and value.count(":") >= 1:
            host, inside = value.split(":")[:2]
            mounts.append((host, inside))
        elif option == "--mount":
            fields = dict(part.partition("=")[::2] for part in value.split(","))
            host = fields.get("source", fields.get("src", ""))
            inside = fields.get("target", fields.get("destination", fields.get("dst", "")))
            mounts.append((host, inside))
    for host, inside in sorted(mounts, key=lambda pair: -len(pair[1])):
        if host and inside and (model == inside or model.startswith(inside.rstrip("/") + "/")):
            return os.path.normpath(os.path.expanduser(host) + "/" + model[len(inside.rstrip("/")) :])
    return model


def with_config(line: ServeLine, given: Sequence[Given], findings: Sequence[Finding], model: str | None) -> ServeLine:
    """The line with a config file's flags before its own: the line wins. They keep no words, so that the command
    that is shown stays the command that was typed."""
    quiet = tuple(entry._replace(words=()) for entry in given)
    return replace(
        line,
        source=line.source if line.source is not None else model,
        given=(*quiet, *line.given),
        findings=(*findings, *line.findings),
    )
