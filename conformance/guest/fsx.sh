# fsx.sh VERS FSX OPERATIONS SEED: the file system exerciser on a mount: random reads, writes, mapped
# reads and writes, truncates, hole punches, copies; every read is checked. Only v4.2 can punch and reserve.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
vers=$1 fsx=$2 operations=$3 seed=$4
mount_weir "$vers"
cat >/run/fsx.toml <<'T'
flen = 524288
[opsize]
max = 65536
[weights]
close_open = 1
invalidate = 1
truncate = 2
read = 10
write = 10
mapread = 5
mapwrite = 5
fsync = 1
fdatasync = 1
T
if [[ $vers == 4.2 ]]; then printf 'punch_hole = 3\nposix_fallocate = 1\n' >>/run/fsx.toml; fi
"$fsx" -q -f /run/fsx.toml -N "$operations" -S "$seed" -P /run "$M/fsx-$vers" || fail "fsx vers=$vers seed $seed"
rm "$M/fsx-$vers"; umount $M
echo "fsx vers=$vers: ok"
