#!/usr/bin/env bash
# ganesha.sh WEIR FILES DIR: runs nfs-ganesha and weir's client natively in their own network and mount namespaces, so
# that they do not use the machine's port mapper. Copies FILES to the server and back with each version, into DIR/VERSION.
set -euo pipefail
weir=$1 files=$2 dir=$3
ip link set lo up
mount -t tmpfs none /run
source "$(dirname "${BASH_SOURCE[0]}")/ganesha-conf.sh"
source "$(dirname "${BASH_SOURCE[0]}")/port-mapper.sh"
ganesha_conf "$dir" 'Enable_NLM = false;' 'Graceless = true;'
port_mapper
ganesha.nfsd -F -L "$dir/ganesha.log" -f "$dir/ganesha.conf" -p "$dir/ganesha.pid" & server=$!
trap 'kill $server $mapper; wait' EXIT
ganesha_answers "$weir" "$dir"
for version in 3 4.0 4.1 4.2; do
  url=nfs://127.0.0.1$dir/export/$version
  "$weir" cp -rp -o vers=$version "$files" "$url"
  "$weir" cp -rp -o vers=$version "$url" "$dir/$version"
done
