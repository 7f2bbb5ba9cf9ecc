# confirm.sh: a client of version 4.0 whose open owners the server has forgotten (lease of five seconds) confirms new
# ones with OPEN_CONFIRM and continues.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
mount_weir 4.0
echo first >$M/f
[[ $(counted OPEN_CONFIRM 1) == 0 ]] || fail 'a first owner had to confirm'
for round in 1 2; do
  # Another owner renews the client's lease; this one is idle, and both sides forget it.
  perl -e '$> = 1000; open(my $f, "<", "/run/mnt/f") or die "open: $!"; sleep 15' || fail 'the other owner'
  before=$(counted OPEN_CONFIRM 1)
  echo "round $round" >>$M/f
  (flock 7; echo locked >&7) 7>>$M/f
  cp $M/f $M/copy.$round; cmp $M/f $M/copy.$round
  echo "confirmed: $(($(counted OPEN_CONFIRM 1) - before))"
done
[[ $(counted OPEN_CONFIRM 1) -ge 1 ]] || fail 'no owner had to confirm'
[[ $(cat $M/f) == $'first\nround 1\nlocked\nround 2\nlocked' ]] || fail "the file holds $(cat $M/f)"
umount $M
echo 'confirm: ok'
