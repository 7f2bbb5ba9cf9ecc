# knfsd.sh HARNESS FILES OUT: starts knfsd on /dev/ubda with FILES in it, and waits until the native client has
# written OUT.done.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
harness=$1 files=$2 out=$3
mkdir -p /run/exp; mount /dev/ubda /run/exp
cp --sparse=always -a "$files/." /run/exp/
"$harness/knfsd" /run/exp
touch "$out.ready"
for _ in $(seq 600); do [[ -e $out.done ]] && break; sleep 0.5; done
[[ -e $out.done ]] || fail 'the client did not finish'
if [[ -d /run/exp/back ]]; then diff -r --no-dereference "$files" /run/exp/back || fail 'what came back differs'; fi
echo "knfsd: ok"
