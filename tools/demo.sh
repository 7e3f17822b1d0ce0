#!/bin/sh
# What `make demo` runs: a small checkpoint is written, looked at, judged at sizes that work and at
# one that does not, and cut for one of those that work. Fails when an exit code is not the one expected.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

show() { # show EXPECTED-EXIT-CODE COMMAND...
  expected=$1; shift
  printf '\n$ %s\n' "$*"
  code=0; "$@" || code=$?
  [ "$code" -eq "$expected" ] || { echo "demo: exit code $code, expected $expected" >&2; exit 1; }
  [ "$code" -eq 0 ] || echo "(exit code $code)"
}

show 0 mlload demo demo
show 0 mlload inspect demo
show 0 mlload validate demo --tp 1,3 --gpu cc:9.0
show 1 mlload validate demo --tp 2 --gpu cc:9.0
show 0 mlload shard demo -o out --tp 3
