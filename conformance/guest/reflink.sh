# reflink.sh EXPORT: clones files through vers=4.2 on a file system with reflinks, and checks their space.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export_dir=$1
mount_weir 4.2
perl -e 'print chr(65 + $_ % 26) x 65536 for 1 .. 320' >$M/f; sync $M/f
used() { df -B1K --output=used $M | tail -1; }
before=$(used)
cp --reflink=always $M/f $M/g || fail 'cp --reflink=always'
cmp $M/f $M/g || fail 'the clone differs'
sync $M/g
(($(used) - before < 4096)) || fail "the clone of 20 MiB took $(($(used) - before)) KiB"
# A write to one clone does not show in the other; a clone includes data not written back yet.
printf changed | dd of=$M/g bs=1 seek=100000 conv=notrunc status=none
[[ $(tail -c +100001 $M/g | head -c 7) == changed && $(tail -c +100001 $M/f | head -c 7) != changed ]] || fail 'not two files'
printf fresh >$M/h; cp --reflink=always $M/h $M/i; [[ $(cat $M/i) == fresh ]] || fail 'what was written just now is not in the clone'
# An aligned range; the server refuses an unaligned one, which changes nothing.
xfs_io -f -c 'reflink '"$M/f"' 65536 131072 65536' $M/r >/dev/null; cmp -n 65536 -i 65536:131072 $M/f $M/r || fail 'a range'
[[ $(stat -c %s $M/r) == 196608 ]] || fail "a range made the size $(stat -c %s $M/r)"
if xfs_io -c "reflink $M/f 100 200 300" $M/r 2>&1 | grep -q 'linked 300'; then fail 'an unaligned range'; fi
umount $M; mount_weir 4.2
cmp $M/f "$export_dir/f" || fail 'the source changed'; cmp $M/g "$export_dir/g" || fail 'the clone on the server'
umount $M
# Earlier versions have no CLONE, and fail.
for vers in 3 4.1; do
  mount_weir $vers
  if cp --reflink=always $M/f $M/j 2>/dev/null; then fail "vers=$vers clones"; fi
  cp --reflink=auto $M/f $M/j; cmp $M/f $M/j || fail "a plain copy, vers=$vers"; rm $M/j
  umount $M
done
echo 'reflink: ok'
