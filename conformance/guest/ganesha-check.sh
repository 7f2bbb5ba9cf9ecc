#!/usr/bin/env bash
# ganesha-check.sh WEIR DIR: runs `weir check` on nfs-ganesha in its own namespaces; the findings go to DIR/found.
set -euo pipefail
weir=$1 dir=$2
ip link set lo up
mount -t tmpfs none /run
source "$(dirname "${BASH_SOURCE[0]}")/ganesha-conf.sh"
source "$(dirname "${BASH_SOURCE[0]}")/port-mapper.sh"
ganesha_conf "$dir" 'Enable_NLM = false;' 'Graceless = true; Lease_Lifetime = 10;'
port_mapper
ganesha.nfsd -F -L "$dir/ganesha.log" -f "$dir/ganesha.conf" -p "$dir/ganesha.pid" & server=$!
trap 'kill -9 $server; kill $mapper; wait' EXIT
ganesha_answers "$weir" "$dir"
"$weir" check --leases --json "nfs://127.0.0.1$dir/export" >"$dir/found" || [[ $? == 1 ]]
