# knfsd-locks.sh HARNESS DIR: starts knfsd with its lock manager on /dev/ubda, and waits until the native client has
# written DIR/done. It restarts knfsd when DIR/restart appears, and runs DIR/do when that appears, with output to DIR/did.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
harness=$1 dir=$2
mkdir -p /run/exp; mount /dev/ubda /run/exp
"$harness/knfsd" /run/exp
chown -R statd /var/lib/nfs/sm /var/lib/nfs/sm.bak 2>/dev/null || true
rpc.statd --no-notify
touch "$dir/up"
for _ in $(seq 1200); do
  [[ -e $dir/done ]] && break
  if [[ -e $dir/restart ]]; then
    # lockd ends with the last nfsd thread, and both begin with a grace period.
    rm "$dir/restart"; rpc.nfsd 0; sleep 1; rpc.nfsd -L 15 -G 40 8; touch "$dir/restarted"
  fi
  if [[ -e $dir/do ]]; then
    (cd /run/exp && bash "$dir/do") >"$dir/did.new" 2>&1 || true; rm "$dir/do"; mv "$dir/did.new" "$dir/did"
  fi
  sleep 0.25
done
[[ -e $dir/done ]] || fail 'the client did not finish'
echo "knfsd: ok"
