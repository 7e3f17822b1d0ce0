#!/usr/bin/env bash
# Everything that needs a GPU, in one command of under 8 minutes on one H200, without a network:
# correctness of every kernel on the device, a table of speeds, and the load test where it is built.
#
#   OUT=folder PYTHON=python3 benchmarks/gpu/run.sh
#
# Each part has a time after which it is stopped, 150 + 200 s and what is then left of 470, and writes what it has as
# it goes, so that a part that is stopped has left its results.
# Works with torch 2.11 and triton 3.6 or newer. Writes correctness.json, speed.json, speed.txt and load_test.json.
set -uo pipefail
cd "$(dirname "$0")/../.."
export OUT="${OUT:-benchmarks/results/gpu}" PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export TRITON_DEFAULT_FP_FUSION=1 HF_HUB_OFFLINE=1
unset TRITON_INTERPRET
python="${PYTHON:-python3}"
mkdir -p "$OUT"
failed=0

"$python" - <<'PY' || exit 2
import sys, torch, triton
if not torch.cuda.is_available():
    sys.exit("no CUDA GPU here: nothing is measured and nothing is claimed")
print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
PY

echo "== correctness"
timeout -k 3 150 "$python" -m benchmarks.gpu.correctness --seconds 125 || { failed=1; echo "correctness: failed or ran out of time"; }
echo "== speed"
timeout -k 3 200 "$python" -m benchmarks.gpu.speed --seconds 175 || { failed=1; echo "speed: failed or ran out of time"; }
echo "== load test"
if "$python" -m mlload load-test --help >/dev/null 2>&1; then
  # Of 470 s, all told, what is left: each kind of checkpoint is written down when it is done.
  left=$((470 - SECONDS))
  timeout -k 3 "$((left < 110 ? left : 110))" "$python" -m benchmarks.gpu.load_test || { failed=1; echo "load test: failed or ran out of time"; }
else
  echo "skipped: this version of mlload has no load-test command"
fi
exit $failed
