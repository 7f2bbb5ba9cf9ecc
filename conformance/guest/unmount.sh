# unmount.sh DIR: a server that is killed right after its only client unmounted gives files out at once when it
# is back, without waiting out a grace period that nobody needs. DIR is the exported directory, seen directly.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$1
for vers in 4.1 4.2 4.0; do
  mount_weir $vers
  echo "$vers" >"$M/file"; cat "$M/file" "$M/file" >/dev/null
  umount $M
  # In minor version 0 nobody says goodbye: the server forgets who has had nothing for ten seconds.
  if [[ $vers == 4.0 ]]; then sleep 15; fi
  echo KILL >"$dir.signal"; mv "$dir.signal" "$dir.kill"
  while [[ -e $dir.kill ]]; do sleep 0.1; done
  mount_weir $vers
  SECONDS=0
  echo again >>"$M/file"
  [[ $SECONDS -lt 30 ]] || fail "vers=$vers waited $SECONDS s for its first open"
  umount $M
done
echo 'unmount: ok'
