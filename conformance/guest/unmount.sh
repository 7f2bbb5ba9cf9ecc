# unmount.sh DIR: a server that is killed right after its only client unmounted has no grace period when it restarts,
# because no client can reclaim. DIR is the exported directory, accessed directly.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$1
for vers in 4.1 4.2 4.0; do
  mount_weir $vers
  echo "$vers" >"$M/file"; cat "$M/file" "$M/file" >/dev/null
  umount $M
  # Minor version 0 has no DESTROY_CLIENTID: the server forgets a client that had no state for ten seconds.
  if [[ $vers == 4.0 ]]; then sleep 40; fi
  echo KILL >"$dir.signal"; mv "$dir.signal" "$dir.kill"
  while [[ -e $dir.kill ]]; do sleep 0.1; done
  mount_weir $vers
  SECONDS=0
  echo again >>"$M/file"
  [[ $SECONDS -lt 30 ]] || fail "vers=$vers waited $SECONDS s for its first open"
  umount $M
done
echo 'unmount: ok'
