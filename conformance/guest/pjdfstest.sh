# pjdfstest.sh VERS PJDFSTEST CONFIG: the POSIX file system test suite on a mount; prints its verdicts.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
vers=$1 suite=$2 config=$3
mount_weir "$vers"
mkdir -m 755 "$M/pjd-$vers"; cd "$M/pjd-$vers"
NO_COLOR=1 "$suite" -c "$config" -p "$M/pjd-$vers" || true
cd /; rm -rf "$M/pjd-$vers"; umount $M
