"""Stands in for `inside/start.py` where no vLLM is needed: it writes the events and the log that a test asks for.

The flags tell: --log LINE, --event JSON, --hang (with a process that ignores SIGTERM), --die SIGNAL, in that order.
"""

import json
import os
import signal
import subprocess
import sys
import time

if sys.argv[1:] == ["--stubborn"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)

with open(sys.argv[1]) as file:
    asked = json.load(file)
words = asked["words"][2:]
while words:
    word = words.pop(0)
    if word == "--log":
        print(words.pop(0), flush=True)
    elif word == "--event":
        with open(sys.argv[2], "a") as out:
            out.write(words.pop(0) + "\n")
    elif word == "--hang":
        process = subprocess.Popen([sys.executable, __file__, "--stubborn"], start_new_session=True)
        print(f"hanging {os.getpid()} {process.pid}", flush=True)
        time.sleep(600)
    elif word == "--die":
        os.kill(os.getpid(), int(words.pop(0)))
