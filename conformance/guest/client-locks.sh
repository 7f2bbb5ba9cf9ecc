#!/usr/bin/env bash
# client-locks.sh PART WEIR HOST PATH3 PATH4 DIR: locks of weir's client on files of a server, natively. The exported
# directory is PATH3 to version 3, PATH4 to the others. PART: rules, or restart, for which the server is restarted
# without warning when DIR/restart appears, and DIR/restarted says so. A port mapper runs here already.
set -euo pipefail
part=$1 weir=$2 host=$3 path3=$4 path4=$5 dir=$6
# Aside: who calls may have its output taken.
fail() { { echo "FAIL: $*"; for log in "$dir"/*.log; do echo "--- $log"; tail -n 20 "$log"; done; } >&2; exit 1; }
url() { if [[ $1 == 3 ]]; then echo "nfs://$host$path3/$2?vers=3"; else echo "nfs://$host$path4/$2?vers=$1"; fi; }
# hold NAME VERSION FILE RANGE [OPTION]: takes a lock, in the background, until `release NAME`.
hold() {
  rm -f "$dir/$1".{ready,stop}
  WEIR_LOG=warn,weir_client=debug "$weir" lock -o timeo=20 --range "$4" ${5-} "$(url "$2" "$3")" \
    sh -c "touch $dir/$1.ready; while [ ! -e $dir/$1.stop ]; do sleep 0.05; done" 2>"$dir/$1.log" &
  eval "pid_$1=$!"
}
holds() { [[ -e $dir/$1.ready ]]; }
await() { local i; for i in $(seq $(($2 * 50))); do holds "$1" && return; sleep 0.02; done; fail "$1 did not get its lock in $2 s"; }
release() { touch "$dir/$1.stop"; local pid; eval "pid=\$pid_$1"; wait "$pid" || fail "$1 ended with $?"; }
# try VERSION FILE RANGE [OPTION]: says whether a lock is free, by taking it.
try() { if "$weir" lock -n --range "$3" ${4-} "$(url "$1" "$2")" true 2>"$dir/try.log"; then echo free
  elif grep -q 'somebody else holds' "$dir/try.log"; then echo busy; else fail "$*"; fi; }
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
    echo "GRANTED $pair $took ms, told $(grep -c 'says that a lock' "$dir/two.log")"
    expect busy "$a" f 5-5
    # From exclusive to shared, in the middle.
    release two
    hold one "$a" f 0-99 --shared; await one 30
    expect free "$b" f 50-200 --shared
    expect busy "$b" f 50-200
    release one
    expect free "$b" f 0-
  done
  # Whoever stops waiting has nothing, and is in nobody's way.
  for b in 3 4.2; do
    hold one 4.1 f 0-; await one 30
    if "$weir" lock -w 2 "$(url $b f)" true 2>"$dir/try.log"; then fail "$b: was taken twice"; fi
    release one; sleep 1
    expect free 4.0 f 0-
  done
  echo 'client locks rules: ok'
}

# All versions hold locks while the server is restarted; all have them afterwards, and nobody else got one.
restart() {
  local version
  for version in 3 4.0 4.1 4.2; do hold "v${version/./_}" "$version" "$version" 0-9; done
  for version in 3 4_0 4_1 4_2; do await v$version 60; done
  touch "$dir/restart"
  for _ in $(seq 600); do [[ -e $dir/restarted ]] && break; sleep 0.1; done
  [[ -e $dir/restarted ]] || fail 'the server was not restarted'
  # Who mounts while nobody listens yet is refused.
  for _ in $(seq 100); do "$weir" ls "$(url 4.2 3)" >/dev/null 2>&1 && break; sleep 0.1; done
  # New locks wait for the end of grace.
  for version in 3 4.0 4.1 4.2; do
    expect busy 4.2 "$version" 5-5
    expect free 4.1 "$version" 10-
  done
  for version in 3 4_0 4_1 4_2; do
    grep 'a lock is lost' "$dir/v$version.log" && fail "NFSv$version lost its lock"
    release v$version
  done
  for version in 3 4.0 4.1 4.2; do expect free 4.2 "$version" 0-; done
  echo 'client locks restart: ok'
}

for file in f 3 4.0 4.1 4.2; do "$weir" touch "$(url 4.2 $file)"; done
$part
