# postgres.sh STEP DIR BESIDE: a database of PostgreSQL in DIR, whose socket and log are in BESIDE; not as root.
#   make   makes the database, with checksums, and starts its server
#   start  starts the server again
#   load   changes the database until its server ends; notes in BESIDE/acknowledged what was committed
#   kill   kills the server (SIGKILL), and waits until its other processes have ended
#   check  finds every noted change, and no change that is half there; stops the server, and checks each block
set -euo pipefail
step=$1 dir=$2 beside=$3
PATH=$(dirname "$(readlink -f "$(command -v pg_ctl)")"):$PATH
export PATH PGHOST=$beside PGUSER=weir PGDATABASE=postgres
ask() { psql -qAtX -v ON_ERROR_STOP=1 -c "$1"; }
# quietly NAME COMMAND: shows the output only of a failure.
quietly() { "${@:2}" >"$beside/$1.log" 2>&1 || { tail -50 "$beside/$1.log"; return 1; }; }
start() {
  quietly start pg_ctl -w -t 60 -D "$dir" -l "$beside/server.log" \
    -o "-k $beside -c listen_addresses= -c shared_buffers=16MB -c checkpoint_timeout=30s" start ||
    { tail -50 "$beside/server.log"; return 1; }
  head -1 "$dir/postmaster.pid" >"$beside/pid"
}
case $step in
  make)
    quietly initdb initdb -k -A trust -U weir -D "$dir"
    start
    quietly fill pgbench -i -q -s 2
    ask 'create table noted (n serial primary key)'
    ;;
  start) start ;;
  load)
    pgbench -n -c 4 -j 2 -T 600 >"$beside/load.log" 2>&1 &
    # Changes were committed before the first line is noted, so `check` finds some.
    while [[ $(ask 'select count(*) from pgbench_history' 2>/dev/null) == 0 ]]; do sleep 0.1; done
    # The line is printed when the server has acknowledged the commit.
    while n=$(ask 'insert into noted default values returning n' 2>/dev/null); do echo "$n"; done >>"$beside/acknowledged"
    wait || true
    ;;
  kill)
    server=$(<"$beside/pid")
    mapfile -t others < <(pgrep -P "$server")
    kill -KILL "$server" 2>/dev/null || true
    for process in "$server" "${others[@]}"; do
      for _ in $(seq 300); do [[ -e /proc/$process ]] || continue 2; sleep 0.1; done
      kill -KILL "$process" 2>/dev/null || true
    done
    ;;
  check)
    lost=$(ask 'select n from noted' | sort | comm -13 - <(sort "$beside/acknowledged"))
    [[ -z $lost ]] || { echo "lost: $lost"; exit 1; }
    sums=$(ask 'select (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers),
      (select sum(bbalance) from pgbench_branches), (select coalesce(sum(delta), 0) from pgbench_history)')
    [[ $(tr '|' '\n' <<<"$sums" | sort -u | wc -l) == 1 ]] || { echo "half a change: $sums"; exit 1; }
    [[ $(ask 'select count(*) from pgbench_history') -gt 0 ]] || { echo 'the load did nothing'; exit 1; }
    quietly stop pg_ctl -w -D "$dir" -m fast stop
    quietly checksums pg_checksums --check -D "$dir"
    ;;
esac
