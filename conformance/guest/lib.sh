# Sourced by the guest scripts: mounts, and the client's counters.
set -euo pipefail
M=/run/mnt
S=192.0.2.1

# mount_weir VERS [OPTIONS [DIR]]: mounts the server's root at $M or DIR.
mount_weir() {
  local options=vers=$1,proto=tcp,port=2049${2:+,$2}
  [[ $1 == 3 ]] && options+=,mountport=2049,mountproto=tcp,nolock
  mount_started "$options" $S:/ "${3:-$M}"
}

# mount_started OPTIONS SOURCE DIR: mounts from a server that may have only been started, and not listen yet.
mount_started() {
  local try
  for try in $(seq 60); do
    mount -t nfs -o "$1" "$2" "$3" && return
    sleep 0.5
  done
  echo "cannot mount $2 with $1"; exit 1
}

# counted OP FIELD: a column of /proc/self/mountstats for the mount at $M: 1 calls, 5 bytes received.
counted() {
  awk -v op="$1:" -v field="$2" '$1 == "device" { here = ($5 == "/run/mnt") } here && $1 == op { print $(field + 1); found = 1 }
    END { if (!found) print 0 }' /proc/self/mountstats
}

# received: bytes of READ and READ_PLUS replies.
received() { echo $(($(counted READ 5) + $(counted READ_PLUS 5))); }

drop_caches() { sync; echo 3 >/proc/sys/vm/drop_caches; }

fail() { echo "FAIL: $*"; exit 1; }

# watch SECONDS [LOG...]: if the script still runs then, says what every thread waits for, and how the logs end.
watch() {
  (
    set +e
    sleep "$1"
    echo "STILL RUNNING after $1 s"
    tail -n 30 /proc/meminfo "${@:2}"
    ss -tn | head -n 60
    for task in /proc/[0-9]*/task/[0-9]*; do
      echo "$task $(cat "$task/comm"): $(awk '/^State/ { print $2 }' "$task/status") $(cat "$task/wchan")"
      cat "$task/stack"
    done
    cat /sys/kernel/debug/sunrpc/rpc_clnt/*/tasks
    echo 9 >/proc/sys/kernel/printk; echo w >/proc/sysrq-trigger
  ) 2>/dev/null &
  disown
}
