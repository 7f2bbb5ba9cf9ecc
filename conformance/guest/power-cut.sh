# power-cut.sh WEIR TOOL FS CUTS OPERATIONS SEED [SERVE_OPTION...]: a load on a server whose disk logs its
# writes, and what is left of it when the power is cut at CUTS places, up to the first that loses something.
# /dev/ubda is the disk, /dev/ubdb its log, /dev/ubdc the disk after a cut.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
weir=$1 tool=$2 fs=$3 cuts=$4 operations=$5 seed=$6
shift 6
export PATH=$PATH:/usr/sbin:/sbin
disk=/run/disk kept=/run/kept server=127.0.0.1:2049 journal=/run/journal
sectors=$(blockdev --getsz /dev/ubda)
mkdir -p $disk /run/logs
watch $((640 + 10 * cuts)) /run/journal /run/logs/load /run/logs/cut

# mapped NAME: the device of a mapping.
mapped() { echo "/dev/dm-$(dmsetup info -c --noheadings -o minor "$1")"; }

# attach DEVICE: mounts the disk.
attach() {
  [[ $fs == btrfs ]] && btrfs device scan --forget >/dev/null
  mount -t "$fs" "$1" $disk
}

# serve STATE_DIR LOG [OPTION...]: starts the server, which answers when this returns.
serve() {
  local state=$1 log=$2
  shift 2
  "$weir" serve --bind $server --insecure --squash none --state-dir "$state" "$@" $disk/export >"$log" 2>&1 &
  pid=$!
  until grep -q "$server" "$log"; do kill -0 $pid || { cat "$log"; fail 'the server ended'; }; sleep 0.02; done
}

# stop: kills the server.
stop() { kill -9 $pid; wait $pid 2>/dev/null || true; }

dmsetup create logged --table "0 $sectors log-writes /dev/ubda /dev/ubdb"
"mkfs.$fs" -q "$(mapped logged)"
attach "$(mapped logged)"
mkdir $disk/export; mkdir -m 700 $disk/state
sync
# A power cut is followed by another boot of the machine, as the server sees it.
echo 11111111-2222-4333-8444-555555555555 >/run/boot_id
mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
serve $disk/state /run/logs/load "$@"
mounts=()
for vers in 3 4.0 4.1 4.2; do
  mkdir -p "/run/mounts/$vers"
  options=vers=$vers,proto=tcp,port=2049,wsize=16384
  [[ $vers == 3 ]] && options+=,mountport=2049,mountproto=tcp,nolock
  mount -t nfs -o "$options,nosharecache" 127.0.0.1:/ "/run/mounts/$vers"
  mounts+=("/run/mounts/$vers")
done
"$tool" load logged $journal $server "$operations" "$seed" "${mounts[@]}" || fail "the load failed: $(cat /run/logs/load)"
umount "${mounts[@]}"
stop
umount /proc/sys/kernel/random/boot_id
# The state directory, had it been on another disk.
cp -a $disk/state $kept
umount $disk
dmsetup remove logged
echo "LOAD $fs: $(wc -l <$journal) operations"

"$tool" cuts /dev/ubdb "$cuts" "$seed" >/run/cuts
last=0 count=0
truncate -s 64M /run/changes
while read -r cut; do
  "$tool" replay /dev/ubdb /dev/ubdc $last "$cut"
  last=$cut
  # What the mount and the server change is thrown away.
  changes=$(losetup -f --show /run/changes)
  dmsetup create cut --table "0 $sectors snapshot /dev/ubdc $changes N 8"
  attach "$(mapped cut)" || fail "$fs cannot be mounted after a cut at $cut"
  if ((count++ % 2)); then state=/run/state; rm -rf $state; cp -a $kept $state; else state=$disk/state; fi
  serve $state /run/logs/cut
  "$tool" check /dev/ubdb $journal "$cut" $disk/export $server || { cat /run/logs/cut; echo "state directory: $state"; failed=1; }
  stop
  umount $disk; dmsetup remove cut; losetup -d "$changes"
  [[ -z ${failed-} ]] || break
  fallocate -p -o 0 -l 64M /run/changes
done </run/cuts
((count)) || fail 'there was no cut'
[[ -z ${failed-} ]] || fail "something that was acknowledged is lost (seed $seed)"
echo "power cuts $fs: $count ok"
