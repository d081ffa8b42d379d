#!/usr/bin/env bash
# usage: supernode.sh FOLDER SUPERLINK CA [PORT [KEY=VALUE ...]]
# Runs a device: it connects to SUPERLINK (HOST:PORT), whose certificate CA (ca.crt) has signed.
# FOLDER holds the device's key and state; if there is no key, this makes one and ends, because its
# .pub must be registered first. PORT (default 9094) is for the device's own processes. KEY=VALUE is
# the owner's policy, and partition-id: data-path=/data 'data={"name": "har_geotec"}'. If there is
# FOLDER/trusted.yaml, whose lines fl-app sign prints, only code signed by one of its keys is run.
# Modules of the owner's own are found if they are installed, or in a folder on PYTHONPATH.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,8s/^# //p' "$0" >&2; exit 2; }
umask 077
mkdir -p "$1"
folder=$(cd "$1" && pwd)
superlink=$2
authority=$(cd "$(dirname "$3")" && pwd)/$(basename "$3")
port=${4:-9094}
shift $(($# < 4 ? $# : 4))
here=$(cd "$(dirname "$0")/.." && pwd)
[ ! -d "$here/.venv/bin" ] || PATH=$here/.venv/bin:$PATH
# Each device unpacks the app's code in a folder of its own.
export PATH FLWR_HOME=$folder/flwr
export PYTHONUNBUFFERED=1 FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.1}
# What is relative in it is so to where this was called.
[ -z "${PYTHONPATH:-}" ] || PYTHONPATH=$(python -Ic 'import os, sys
print(os.pathsep.join(map(os.path.abspath, sys.argv[1].split(os.pathsep))))' "$PYTHONPATH")
mkdir -p "$FLWR_HOME"
if [ ! -e "$folder/key" ]; then
    # Once: a folder that was lost later must not come back empty, with nothing spent.
    mkdir -p "$folder/state"
    ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f "$folder/key"
    echo "made a key: register $folder/key.pub (flwr supernode register), then start this again"
    exit 0
fi
cd "$folder"
trusted=()
[ ! -e trusted.yaml ] || trusted=(--trusted-entities "$folder/trusted.yaml")
exec python -m fl_app.supernode "${trusted[@]}" --superlink "$superlink" --root-certificates "$authority" \
    --auth-supernode-private-key "$folder/key" --host 127.0.0.1 --port "$port" \
    --isolation subprocess --state-dir "$folder/state" -- "$@"
