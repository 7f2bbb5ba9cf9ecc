#!/usr/bin/env bash
# kill-loop.sh KILLS DIR WEIR OPTION...: serves the directory DIR natively, beside a guest. Kills the server KILLS
# times and restarts it, each time after all clients have made progress (DIR.at.CLIENT holds a client's step), then
# creates DIR.done. Ends early when DIR.failed exists.
set -uo pipefail
kills=$1 dir=$2 weir=$3
shift 3
trap 'kill -9 $pid 2>/dev/null' EXIT
serve() { "$weir" serve --squash none --log warn "$@" "$dir" >>"$dir.log" 2>&1 & pid=$!; }
at() { cat "$dir".at.* 2>/dev/null | tr '\n' ' '; }
# progressed BEFORE: whether each client is at least four steps beyond BEFORE.
progressed() {
  local before=($1) now=($(at)) i
  ((${#now[@]} >= 3 && ${#now[@]} == ${#before[@]})) || return
  for i in "${!now[@]}"; do ((now[i] >= before[i] + 4)) || return; done
}
serve "$@"
for ((kill = 1; kill <= kills; kill++)); do
  before=$(at)
  until progressed "$before"; do
    [[ -e $dir.failed ]] && { wait $pid; exit; }
    ((${#before} && $(wc -w <<<"$before") >= 3)) || before=$(at)
    kill -0 $pid || { echo "the server ended by itself" >>"$dir.log"; touch "$dir.failed"; exit; }
    sleep 0.01
  done
  sleep 0.0$((RANDOM % 10))$((RANDOM % 10))
  kill -9 $pid; wait $pid 2>/dev/null
  echo $kill >"$dir.kills"
  serve "$@"
done
touch "$dir.done"
wait $pid
