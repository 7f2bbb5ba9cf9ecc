#!/usr/bin/env bash
# client-locks.sh PART WEIR HOST PATH3 PATH4 DIR: locks of weir's client, natively, on files of a server. The exported
# directory is PATH3 over version 3, PATH4 over the others. PART: rules, or restart: the server restarts without warning
# when DIR/restart appears, and then creates DIR/restarted. The caller has started a port mapper.
set -euo pipefail
part=$1 weir=$2 host=$3 path3=$4 path4=$5 dir=$6
# On standard error, because a caller may capture the output.
fail() { { echo "FAIL: $*"; for log in "$dir"/*.log; do echo "--- $log"; tail -n 20 "$log"; done; } >&2; exit 1; }
url() { if [[ $1 == 3 ]]; then echo "nfs://$host$path3/$2?vers=3"; else echo "nfs://$host$path4/$2?vers=$1"; fi; }
# hold NAME VERSION FILE RANGE [OPTION]: holds a lock in the background until `release NAME`.
hold() {
  rm -f "$dir/$1".{ready,stop}
  WEIR_LOG=warn,weir_client=debug "$weir" lock -o timeo=20 --range "$4" ${5-} "$(url "$2" "$3")" \
    sh -c "touch $dir/$1.ready; while [ ! -e $dir/$1.stop ]; do sleep 0.05; done" 2>"$dir/$1.log" &
  eval "pid_$1=$!"
}
holds() { [[ -e $dir/$1.ready ]]; }
await() { local i; for i in $(seq $(($2 * 50))); do holds "$1" && return; sleep 0.02; done; fail "$1 did not get its lock in $2 s"; }
release() { touch "$dir/$1.stop"; local pid; eval "pid=\$pid_$1"; wait "$pid" || fail "$1 ended with $?"; }
# try VERSION FILE RANGE [OPTION]: takes a lock, and prints whether it was free.
try() { if "$weir" lock -n --range "$3" ${4-} "$(url "$1" "$2")" true 2>"$dir/try.log"; then echo free
  elif grep -q 'another owner holds' "$dir/try.log"; then echo busy; else fail "$*"; fi; }
expect() { local want=$1; shift; local got; got=$(try "$@"); [[ $got == "$want" ]] || fail "$*: $got, not $want"; }
now() { date +%s%3N; }

rules() {
  local pair a b begun took
  for pair in 3:4.0 4.0:4.1 4.1:4.2 4.2:3 3:3; do
    a=${pair%:*} b=${pair#*:}
    hold one "$a" f 100-149; await one 30
    expect busy "$b" f 120-120
    expect busy "$b" f 149-200 --shared
    expect free "$b" f 150-
    expect free "$b" f 0-99
    [[ $("$weir" lock --test "$(url "$b" f)") == 'exclusive 100-149' ]] || fail "$pair: $("$weir" lock --test "$(url "$b" f)")"
    hold two "$b" f 0-; sleep 4
    holds two && fail "$pair: a lock was taken twice"
    begun=$(now); release one; await two 20; took=$(($(now) - begun))
    echo "GRANTED $pair $took ms, told $(grep -cE 'NLM_GRANTED|a lock may be free' "$dir/two.log")"
    expect busy "$a" f 5-5
    # Downgrade the middle from exclusive to shared.
    release two
    hold one "$a" f 0-99 --shared; await one 30
    expect free "$b" f 50-200 --shared
    expect busy "$b" f 50-200
    release one
    expect free "$b" f 0-
  done
  # A client that stops waiting holds nothing and blocks no other client.
  for b in 3 4.2; do
    hold one 4.1 f 0-; await one 30
    if "$weir" lock -w 2 "$(url $b f)" true 2>"$dir/try.log"; then fail "$b: was taken twice"; fi
    release one; sleep 1
    expect free 4.0 f 0-
  done
  echo 'client locks rules: ok'
}

# Clients of all versions hold locks while the server restarts. They have them afterwards, and no other client got one.
restart() {
  local version
  for version in 3 4.0 4.1 4.2; do hold "v${version/./_}" "$version" "$version" 0-9; done
  for version in 3 4_0 4_1 4_2; do await v$version 60; done
  touch "$dir/restart"
  for _ in $(seq 600); do [[ -e $dir/restarted ]] && break; sleep 0.1; done
  [[ -e $dir/restarted ]] || fail 'the server was not restarted'
  # A mount fails while the server does not listen yet.
  for _ in $(seq 100); do "$weir" ls "$(url 4.2 3)" >/dev/null 2>&1 && break; sleep 0.1; done
  # New locks wait for the end of the grace period.
  for version in 3 4.0 4.1 4.2; do
    expect busy 4.2 "$version" 5-5
    expect free 4.1 "$version" 10-
  done
  for version in 3 4_0 4_1 4_2; do
    grep 'a lock could not be reclaimed' "$dir/v$version.log" && fail "NFSv$version lost its lock"
    release v$version
  done
  for version in 3 4.0 4.1 4.2; do expect free 4.2 "$version" 0-; done
  echo 'client locks restart: ok'
}

for file in f 3 4.0 4.1 4.2; do "$weir" touch "$(url 4.2 $file)"; done
$part
