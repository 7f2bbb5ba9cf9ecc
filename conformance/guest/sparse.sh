# sparse.sh DIR: reads prepared sparse files with vers=4.2 and 4.1, and prints the bytes on the wire.
# DIR is the exported directory, read directly for comparison.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$1
for vers in 4.2 4.1; do
  mount_weir $vers
  for file in hole data mixed-4d mixed-4h mixed-8d mixed-8h mixed-16d mixed-16h mixed-32d mixed-32h tail-hole odd; do
    before=$(received)
    cmp "$M/$file" "$dir/$file" || fail "$file differs with vers=$vers"
    echo "RECEIVED $vers $file $(stat -c %s "$dir/$file") $(($(received) - before))"
  done
  echo "CALLS $vers READ $(counted READ 1) READ_PLUS $(counted READ_PLUS 1)"
  umount $M
done
