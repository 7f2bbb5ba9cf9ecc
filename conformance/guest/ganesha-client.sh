#!/usr/bin/env bash
# ganesha-client.sh SCRIPT FIRST WEIR DIR: runs nfs-ganesha, with its lock manager, port mapper and status monitor, and
# weir's client in two sets of namespaces, as two machines; runs SCRIPT FIRST WEIR HOST PATH3 PATH4 DIR in the client's.
set -euo pipefail
script=$1 first=$2 weir=$3 dir=$4 here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/ganesha-conf.sh"
source "$here/port-mapper.sh"
mount -t tmpfs none /run
mkdir -p /run/netns
mount -t tmpfs tmpfs /var/lib/nfs
mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak
chown -R statd /var/lib/nfs 2>/dev/null || true
ip link set lo up
ip netns add client
ip link add name server type veth peer name client netns client
ip addr add 192.0.2.1/24 dev server; ip link set server up
ip -n client addr add 192.0.2.2/24 dev client; ip -n client link set client up; ip -n client link set lo up
ganesha_conf "$dir" 'Enable_NLM = true;' 'Lease_Lifetime = 10; Grace_Period = 40;'
port_mapper
rpc.statd --no-notify -F & monitor=$!
registered status
start() { ganesha.nfsd -F -L "$dir/ganesha.log" -f "$dir/ganesha.conf" -p "$dir/ganesha.pid" & server=$!; }
start
trap 'kill -9 $server; kill $mapper $monitor; wait' EXIT
ip netns exec client unshare -m bash -c "
  source $here/port-mapper.sh; mount -t tmpfs none /run; port_mapper; trap 'kill \$mapper' EXIT
  for _ in \$(seq 150); do
    $weir ls -o soft,retrans=0,timeo=20,vers=4.2 nfs://192.0.2.1$dir/export >/dev/null 2>&1 && break; sleep 0.2
  done
  bash $here/$script $first $weir 192.0.2.1 $dir/export $dir/export $dir" & client=$!
while kill -0 $client 2>/dev/null; do
  if [[ -e $dir/restart ]]; then
    rm "$dir/restart"; kill -9 $server; wait $server || true; start; touch "$dir/restarted"
  fi
  sleep 0.1
done
wait $client
