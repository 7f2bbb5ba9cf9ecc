# mount_speed.sh WEIR DIR: the speed of `weir mount` of a directory below DIR, beside bindfs and the directory itself;
# prints medians of three rounds. Needs fio, bindfs, python3, 2 GiB of space and 4 GiB of memory.
set -euo pipefail
weir=$1 dir=$2
cd "$dir"; mkdir -p plain weir kernel bindfs
head -c 1G /dev/urandom >plain/big
"$weir" mount --budget 3G plain weir
"$weir" mount --budget 256M --cache kernel plain kernel
bindfs plain bindfs
trap 'umount weir kernel bindfs; rm -r plain weir kernel bindfs results' EXIT

seconds() {
  local from; from=$(date +%s.%N)
  "$@" >/dev/null 2>&1
  python3 -c "import sys; print(float(sys.argv[2]) - float(sys.argv[1]))" "$from" "$(date +%s.%N)"
}
# random THREADS FILE: operations a second, and the 50th, 99th and 99.9th percentile in microseconds.
random() {
  fio --name=x --filename="$2" --rw=randread --bs=4k --size=1g --io_size=$((96 / $1))m --numjobs="$1" --group_reporting \
    --ioengine=psync --invalidate=0 --readonly --output-format=json | python3 -c '
import json, sys
read = json.load(sys.stdin)["jobs"][0]["read"]; at = read["clat_ns"]["percentile"]
print(read["iops"], *(at[p] / 1000 for p in ("50.000000", "99.000000", "99.900000")))'
}
# each DIR BODY: runs BODY, Python that uses `path`, for each of 2,000 files below DIR.
each() {
  seconds python3 -c "
import os
os.makedirs('$1/t', exist_ok=True)
for name in (os.listdir('$1/t') or map(str, range(2000))):
    path = '$1/t/' + name
    $2"
}
for _ in 1 2 3; do
  for at in plain weir kernel bindfs; do
    cat $at/big >/dev/null
    echo "read-1M-warm(s) $at $(seconds dd if=$at/big of=/dev/null bs=1M)"
    echo "read-4K-random(/s,us) $at $(random 1 $at/big)"
    echo "read-4K-random-8-threads(/s,us) $at $(random 8 $at/big)"
    echo "write-1M-and-fsync-512M(s) $at $(seconds dd if=/dev/zero of=$at/out bs=1M count=512 conv=fsync)"
    rm $at/out
    echo "create-2000(s) $at $(each $at "f = os.open(path, os.O_CREAT | os.O_WRONLY); os.write(f, b'x' * 1000); os.close(f)")"
    echo "stat-2000(s) $at $(each $at 'os.stat(path)')"
    echo "read-2000(s) $at $(each $at 'f = os.open(path, 0); os.read(f, 4096); os.close(f)')"
    echo "remove-2000(s) $at $(seconds rm -r $at/t)"
  done
done >results
python3 -c '
import collections, statistics
found = collections.defaultdict(list)
for line in open("results"):
    what, at, *figures = line.split()
    found[what, at].append([float(figure) for figure in figures])
for (what, at), rounds in found.items():
    print(what, at, *(f"{statistics.median(column):.4g}" for column in zip(*rounds)))'
