# guest.sh CTL HARNESS RATE: runs in a Linux guest; does what is asked in files CTL/ask-N and
# answers with a line of JSON in CTL/answer-N. RATE limits what the guest sends: bits per second, or 0.
ctl=$1 harness=$2 rate=$3
M=/run/mnt E=/run/exp
mkdir -p $M $E
[[ $rate == 0 ]] || tc qdisc add dev vec0 root tbf rate "${rate}bit" burst 128kb latency 50ms

# The kernel's server, for a directory of the file system on a disk.
knfsd() { # DEVICE DIR
  mkdir -p /run/disk && mount "$1" /run/disk && mount --bind "/run/disk/$2" $E &&
    "$harness/knfsd" $E >&2 && echo '{}'
}
resident() {
  printf '{"resident_bytes": %s}\n' "$(fincore -b -n -o RES "$1")"
}
drop() {
  sync; echo 3 >/proc/sys/vm/drop_caches; resident "$E/$1"
}
load() {
  cat "$E/$1" >/dev/null; resident "$E/$1"
}
received() {
  awk '/per-op statistics/ { on = 1; next } on && NF >= 9 { sum += $6 } END { printf "%d", sum }' /proc/self/mountstats
}
# Reads a file of a server through a fresh mount.
read_file() { # VERS PORT FILE DD-OPERAND...
  local options=vers=$1,proto=tcp,port=$2,rsize=1048576
  [[ $1 == 3 ]] && options+=,mountport=$2,mountproto=tcp,nolock
  mount -t nfs -o "$options" 192.0.2.1:/ $M || return
  local before begun seconds bytes
  before=$(received) begun=${EPOCHREALTIME/./}
  bytes=$(dd if="$M/$3" of=/dev/null "${@:4}" 2>&1 | awk '/copied/ { print $1 }')
  local ended=${EPOCHREALTIME/./} after
  after=$(received)
  umount $M
  [[ -n $bytes ]] || return
  printf '{"seconds": %s, "received_bytes": %d, "read_bytes": %d}\n' \
    "$(awk "BEGIN { print ($ended - $begun) / 1000000 }")" $((after - before)) "$bytes"
}

for ((n = 0; ; n++)); do
  until [[ -e $ctl/ask-$n ]]; do sleep 0.05; done
  read -r -a asked <"$ctl/ask-$n"
  [[ ${asked[0]} == quit ]] && exit 0
  said=$("${asked[@]}" 2>"$ctl/errors") || said=
  if [[ -z $said ]]; then
    said=$(tr '\n"\\' "; '" <"$ctl/errors"); said="{\"error\": \"${said:-it failed}\"}"
  fi
  printf '%s\n' "$said" >"$ctl/.answer-$n"
  mv "$ctl/.answer-$n" "$ctl/answer-$n"
done
