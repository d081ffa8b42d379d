#!/usr/bin/env bash
# usage: superlink.sh CERTIFICATES FOLDER [HOST [PORT]]
# Runs a SuperLink with TLS that knows its devices by their keys, at HOST:PORT (default
# 127.0.0.1:9093; 0.0.0.0 for other machines). Its runs, registered devices and results are in
# FOLDER, so it can be stopped and started again. Code that fl-app sign has put into FOLDER/bundle is
# offered with its signatures, by a hub on this machine at port $FL_APP_HUB_PORT (default 9099).
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
certificates=$(cd "$1" && pwd)
mkdir -p "$2"
folder=$(cd "$2" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)
[ ! -d "$here/.venv/bin" ] || PATH=$here/.venv/bin:$PATH
export PATH FLWR_HOME=$folder/flwr
export PYTHONUNBUFFERED=1 FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.1}
# What is relative in it is so to where this was called.
[ -z "${PYTHONPATH:-}" ] || PYTHONPATH=$(python -Ic 'import os, sys
print(os.pathsep.join(map(os.path.abspath, sys.argv[1].split(os.pathsep))))' "$PYTHONPATH")
mkdir -p "$FLWR_HOME" "$folder/bundle"
cd "$folder"
export FLWR_SUPERGRID_API_URL=http://127.0.0.1:${FL_APP_HUB_PORT:-9099}/v1
export no_proxy=127.0.0.1${no_proxy:+,$no_proxy}
python -m fl_app.engines.bundle_hub "$folder/bundle" "${FL_APP_HUB_PORT:-9099}" &
exec flower-superlink --host "${3:-127.0.0.1}" --port "${4:-9093}" \
    --ssl-ca-certfile "$certificates/ca.crt" --ssl-certfile "$certificates/superlink.crt" \
    --ssl-keyfile "$certificates/superlink.key" --enable-supernode-auth \
    --isolation subprocess --disable-runtime-dependency-installation \
    --database "$folder/state.db"
