#!/usr/bin/env bash
# client-leftovers.sh WEIR HOST DIR: runs commands of weir's client natively against knfsd. The guest then lists knfsd's
# clients (it runs DIR/do, see knfsd-locks.sh): there must be none after a command that ended in order, or, over
# version 4.0, one without state.
set -euo pipefail
weir=$1 host=$2 dir=$3
fail() { echo "FAIL: $*"; exit 1; }
at_server() {
  local i
  rm -f "$dir/did"; printf '%s\n' "$*" >"$dir/do.new"; mv "$dir/do.new" "$dir/do"
  for i in $(seq 600); do [[ -e $dir/did ]] && { cat "$dir/did"; return; }; sleep 0.1; done
  fail 'the server does nothing'
}
clients() { at_server 'cat /proc/fs/nfsd/clients/*/info 2>/dev/null'; }
echo hello >"$dir/file"
for version in 4.1 4.2; do
  url() { echo "nfs://$host/$1?vers=$version"; }
  # On files, directories and missing names; some of these commands fail.
  "$weir" cp "$dir/file" "$(url file)"
  "$weir" cat "$(url file)" | cmp - "$dir/file"
  "$weir" lock "$(url file)" true
  "$weir" lock "$(url lock)" true
  "$weir" lock "$(url file)" false && fail 'false succeeded'
  "$weir" ls -l "$(url '')"
  "$weir" ls "$(url nothing)" && fail 'what is not there is listed'
  "$weir" mkdir "$(url dir)"
  "$weir" mv "$(url file)" "$(url dir/file)"
  "$weir" cp -r "$(url dir)" "$dir/$version"
  "$weir" rm -r "$(url dir)"
  left=$(clients)
  [[ -z $left ]] || fail "vers=$version leaves: $left"
done
# A client shows while its command runs.
"$weir" lock "nfs://$host/lock?vers=4.2" sh -c "touch $dir/locked; while [ ! -e $dir/free ]; do sleep 0.1; done" & lock=$!
while [[ ! -e $dir/locked ]]; do sleep 0.1; done
clients | grep -q weir || fail 'a client that is there is not seen'
touch "$dir/free"; wait $lock
left=$(clients)
[[ -z $left ]] || fail "a lock leaves: $left"
# A client of version 4.0 ends with its lease, but releases opens and locks before (RELEASE_LOCKOWNER, opcode 39).
released() { at_server 'awk "/^proc4ops/ { print \$(39 + 3) }" /proc/net/rpc/nfsd'; }
before=$(released)
"$weir" lock "nfs://$host/lock?vers=4.0" true
[[ $(released) == $((before + 1)) ]] || fail "RELEASE_LOCKOWNER: $(released) times, $before before"
left=$(at_server 'grep -hv closed /proc/fs/nfsd/clients/*/states')
[[ -z $left ]] || fail "a lock of version 4.0 leaves: $left"
echo 'client leftovers: ok'
