# copy.sh DIR: a long file with holes is copied by the server, in the background: no byte crosses the wire.
# DIR is the exported directory, seen directly for comparison.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$1
mount_weir 4.2
cp --reflink=never --sparse=never "$M/long" "$M/copied" || fail cp
echo "CALLS COPY $(counted COPY 1) WRITE $(counted WRITE 1) READ $(($(counted READ 1) + $(counted READ_PLUS 1)))"
[[ $(counted COPY 1) -ge 1 && $(counted WRITE 1) == 0 ]] || fail 'the client copied itself'
umount $M
cmp "$dir/long" "$dir/copied" || fail 'the copy differs'
echo 'copy: ok'
