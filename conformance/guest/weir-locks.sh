#!/usr/bin/env bash
# weir-locks.sh PART WEIR EXPORT DIR: runs client-locks.sh with a weir server of EXPORT and a port mapper in their own network namespace.
set -euo pipefail
part=$1 weir=$2 export=$3 dir=$4
ip link set lo up
mount -t tmpfs none /run
source "$(dirname "${BASH_SOURCE[0]}")/port-mapper.sh"
port_mapper
"$weir" serve --bind 127.0.0.1:2049 --squash none --state-dir "$dir/state" "$export" >"$dir/server.log" 2>&1 & server=$!
trap 'kill $server $mapper; wait' EXIT
for _ in $(seq 100); do "$weir" ls nfs://127.0.0.1/ >/dev/null 2>&1 && break; sleep 0.2; done
bash "$(dirname "$0")/client-locks.sh" "$part" "$weir" 127.0.0.1 '' '' "$dir"
