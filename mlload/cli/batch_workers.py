"""Many questions answered by a few forked processes: one that dies costs its own question and nothing else."""

from __future__ import annotations

import json
import os
import selectors
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

# A worker is replaced after so many questions, so that whatever it kept is given back.
QUESTIONS_EACH = 200


class Answered(NamedTuple):
    """answer: what `work` returned; None where its process died, and then died tells how."""

    question: str
    answer: dict[str, Any] | None
    died: str = ""


class Worker:
    """A forked process that reads questions and writes answers, one JSON line each."""

    def __init__(self, work: Callable[[str], dict[str, Any]], others: Iterable[Worker]) -> None:
        questions_out, self.questions = os.pipe()
        self.answers, answers_in = os.pipe()
        self.asked: str | None = None
        self.count = 0
        self.text = b""
        self.pid = os.fork()
        if self.pid == 0:
            for fd in (self.questions, self.answers, *(fd for other in others for fd in other.descriptors)):
                os.close(fd)
            serve(work, questions_out, answers_in)
        os.close(questions_out)
        os.close(answers_in)

    @property
    def descriptors(self) -> tuple[int, int]:
        return self.questions, self.answers

    def ask(self, question: str) -> None:
        self.asked, self.count, self.text = question, self.count + 1, b""
        with suppress(BrokenPipeError):  # it died between two questions: reading its answer tells so
            os.write(self.questions, (json.dumps(question) + "\n").encode())

    def read(self) -> Answered | None:
        """What it was asked, answered; None where only a part of the answer has come."""
        assert self.asked is not None
        piece = os.read(self.answers, 1 << 20)
        self.text += piece
        if not piece:
            return Answered(self.asked, None, self.end())
        if not self.text.endswith(b"\n"):
            return None
        return Answered(self.asked, json.loads(self.text))

    def end(self) -> str:
        """Let it go, and say how it ended."""
        for fd in self.descriptors:
            os.close(fd)
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return (
            f"its process was ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with {code}"
        )

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.end()


def serve(work: Callable[[str], dict[str, Any]], questions: int, answers: int) -> None:
    """The life of a worker; never returns."""
    code = 1
    try:
        with open(questions, encoding="utf-8") as lines, open(answers, "w", encoding="utf-8") as out:
            for line in lines:
                out.write(json.dumps(work(json.loads(line))) + "\n")
                out.flush()
        code = 0
    except KeyboardInterrupt:
        code = 130
    finally:
        os._exit(code)


def answer_all(questions: Iterable[str], work: Callable[[str], dict[str, Any]], jobs: int) -> Iterator[Answered]:
    """Answers as they come, from at most `jobs` processes. Whatever ends the iteration ends them too."""
    left = iter(questions)
    workers: set[Worker] = set()
    ready = selectors.DefaultSelector()

    def start(question: str | None) -> None:
        if question is not None:
            worker = Worker(work, workers)
            workers.add(worker)
            ready.register(worker.answers, selectors.EVENT_READ, worker)
            worker.ask(question)

    def leave(worker: Worker) -> None:
        workers.discard(worker)
        ready.unregister(worker.answers)

    try:
        for _ in range(jobs):
            start(next(left, None))
        while workers:
            for key, _ in ready.select():
                worker: Worker = key.data
                found = worker.read()
                if found is None:
                    continue
                following = next(left, None)
                if found.answer is None:
                    leave(worker)
                    start(following)
                elif following is None or worker.count >= QUESTIONS_EACH:
                    leave(worker)
                    worker.end()
                    start(following)
                else:
                    worker.ask(following)
                yield found
    finally:
        for worker in workers:
            worker.kill()
        ready.close()
