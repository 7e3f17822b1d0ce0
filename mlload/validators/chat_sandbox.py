"""Renders chat templates: a program of its own, started by `chat_render`, so that a stranger's template can neither
loop for ever nor take the memory of the process that asked.

It reads one JSON object from stdin, {path, cpu_seconds, memory_bytes, templates: [{name, text}], cases: {name:
variables}}, and writes one to stdout: template -> case -> {"text"} or {"kind", "error", "line"}. Settings of the
environment are those of transformers' `apply_chat_template` (utils/chat_template_utils.py).
"""

from __future__ import annotations

import json
import sys
from typing import Any

SHOWN = 20_000  # characters of a rendering that are handed back


def environment() -> Any:
    """jinja2's immutable sandbox as transformers sets it up."""
    from jinja2 import ext, nodes
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):
        """{% generation %} ... {% endgeneration %} marks what a model writes; it prints its body."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller: Any) -> str:
            return str(caller())

    def raise_exception(message: str) -> None:
        raise Refused(message)

    class Refused(TemplateError):
        """The template itself says no."""

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(form: str) -> str:
        from datetime import datetime

        return datetime.now().strftime(form)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols], cache_size=0
    )
    made.filters["tojson"] = tojson
    made.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return made


def render(text: str, cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every case of one template. A template that does not compile fails in all of them."""
    try:
        template = environment().from_string(text)
    except Exception as error:
        return {case: failure(error) for case in cases}
    found = {}
    for case, variables in cases.items():
        try:
            found[case] = {"text": template.render(variables)[:SHOWN]}
        except Exception as error:
            found[case] = failure(error)
    return found


def failure(error: Exception) -> dict[str, Any]:
    """kind: "refused" (raise_exception), "syntax", "memory", or the exception's name; the template's line."""
    name = type(error).__name__
    kind = {"Refused": "refused", "TemplateSyntaxError": "syntax", "TemplateAssertionError": "syntax"}.get(name, name)
    line = getattr(error, "lineno", None)
    place = error.__traceback__
    while place is not None:
        if place.tb_frame.f_code.co_filename == "<template>":
            line = place.tb_lineno
        place = place.tb_next
    return {"kind": "memory" if name == "MemoryError" else kind, "error": str(error)[:300], "line": line}


def limit(cpu_seconds: int, memory_bytes: int) -> None:
    """Where the system has such limits: the kernel ends a process that runs or grows beyond them."""
    try:
        import resource
    except ImportError:
        return
    for what, amount in ((resource.RLIMIT_CPU, cpu_seconds), (resource.RLIMIT_AS, memory_bytes)):
        try:
            resource.setrlimit(what, (amount, amount))
        except (ValueError, OSError):  # a lower limit holds already, or the system does not know this one
            continue


def main() -> None:
    asked = json.load(sys.stdin)
    sys.path[:] = asked["path"]
    environment()  # imports, before memory is limited
    limit(asked["cpu_seconds"], asked["memory_bytes"])
    for entry in asked["templates"]:
        print(json.dumps(render(entry, asked["cases"])), flush=True)


if __name__ == "__main__":
    main()
