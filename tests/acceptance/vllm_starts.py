"""Asks a real vLLM whether it starts a checkpoint. Runs under vLLM's own python, alone: it imports nothing of mlload.

    python vllm_starts.py QUESTIONS.json ANSWERS.jsonl

A question is {"name", "folder", "tp", "arguments": {...}}: keyword arguments of `vllm.LLM`. With "prompts", lists of
token ids, the engine reads them too, and the answer has "loss": the mean -log p of their tokens but the first. For each
question the engine starts from nothing (config, tokenizer, model, weights, KV cache, warm-up) in a process of its own,
forked after vLLM's imports, which cost more than a start. An answer is {"name", "starts", "error", "message",
"kv_tokens", "shim", "seconds"}; what the engine prints goes to standard error. shim: it ran an operator that this CPU's
build lacks and vllm_operator.py supplied.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

import vllm_operator

# Small enough for any machine; the KV cache is 1 GiB on each rank.
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
LENGTH = 512
LONGEST_START = 300.0
AT_ONCE = 2


def start(question):
    """The answer to one question, but for its time."""
    from vllm import LLM

    arguments = {"max_model_len": LENGTH, "enforce_eager": True, **question.get("arguments", {})}
    try:
        engine = LLM(question["folder"], tensor_parallel_size=question["tp"], **arguments)
    except BaseException as error:
        return refusal(type(error).__name__, str(error)[:1000])
    cache = engine.llm_engine.vllm_config.cache_config
    tokens = cache.num_gpu_blocks * cache.block_size
    answer = {"starts": True, "error": None, "message": "", "kv_tokens": tokens}
    if "prompts" in question:
        answer["loss"] = loss(engine, question["prompts"])
    return answer | {"shim": bool(vllm_operator.USED)}


def refusal(error, message):
    return {"starts": False, "error": error, "message": message, "kv_tokens": None, "shim": False}


def loss(engine, prompts):
    """Mean -log p over every token that has one before it."""
    from vllm import SamplingParams

    asked = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    found = engine.generate([{"prompt_token_ids": ids} for ids in prompts], asked, use_tqdm=False)
    each = [
        -at[token].logprob
        for one in found
        for token, at in zip(one.prompt_token_ids[1:], one.prompt_logprobs[1:], strict=True)
    ]
    return sum(each) / len(each)


def end_with_parent():
    """Ask Linux to kill this process when the one that started it ends, however that ends."""
    death_signal = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(death_signal, signal.SIGKILL)


class Asked:
    """One question in a forked process group of its own, of which nothing is left afterwards."""

    def __init__(self, question):
        self.question, self.began = question, time.monotonic()
        self.read, write = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            os.setsid()
            end_with_parent()
            os.close(self.read)
            answer = start(question)
            with os.fdopen(write, "w") as out:
                json.dump(answer, out)
            os._exit(0)
        os.close(write)

    def answer(self):
        """What it said once it has ended or its time is up; None until then."""
        ended = os.waitpid(self.child, os.WNOHANG)[0] != 0
        seconds = time.monotonic() - self.began
        if not ended and seconds < LONGEST_START:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child, signal.SIGKILL)
        if not ended:
            os.waitpid(self.child, 0)
        # Only now: a worker that outlives the engine would keep the pipe open.
        with os.fdopen(self.read) as said:
            text = said.read()
        if text:
            answer = json.loads(text)
        else:
            how = "ended without a word" if ended else f"was not up after {LONGEST_START:.0f} s"
            answer = refusal("died", f"the engine {how}")
        return {"name": self.question["name"], **answer, "seconds": round(seconds, 1)}


def ask_all(questions, out):
    """Two at a time: each start is one busy thread."""
    waiting, running = list(reversed(questions)), []
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            running.append(Asked(waiting.pop()))
        for asked in list(running):
            answer = asked.answer()
            if answer is not None:
                running.remove(asked)
                print(json.dumps(answer), file=out, flush=True)
        time.sleep(0.05)


def main():
    end_with_parent()
    questions = json.loads(Path(sys.argv[1]).read_text())
    # vLLM's log goes where errors go; standard output of its native code too.
    os.dup2(2, 1)
    import vllm.model_executor.models.llama
    import vllm.v1.engine.llm_engine
    import vllm.v1.worker.cpu_worker  # noqa: F401

    kept = vllm_operator.supply()
    with open(sys.argv[2], "w") as out:
        ask_all(questions, out)
    del kept


# Workers of tp > 1 are spawned and read this file again: for the settings, and without the stand-in.
os.environ.update(SETTINGS)
if __name__ == "__main__":
    main()
