# lease.sh HELD_BY TAKEN_BY LEASE: a client of version HELD_BY loses its network while it has a file locked. A client of
# version TAKEN_BY gets the lock when the lease, of LEASE seconds, expires, not before, and the server refuses later
# writes of the first client. The server also listens at 192.0.2.3; mounts of two versions are two clients.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
held_by=$1 taken_by=$2 lease=$3
M2=/run/mnt2
mkdir -p $M2
S=192.0.2.3 mount_weir "$held_by"
mount_weir "$taken_by" '' $M2

# try_lock FILE: takes the lock on descriptor 6, or fails at once.
try_lock() { exec 6>>"$1"; flock -n 6; }

echo first >$M/f; echo first >$M/h
mkfifo /run/go /run/go_on /run/end
perl -e '
  use Fcntl ":flock"; $| = 1;
  open(my $f, "+<", "/run/mnt/f") or die "open: $!"; flock($f, LOCK_EX) or die "lock: $!";
  open(my $g, "+<", "/run/mnt/f") or die; print "locked\n";
  open(my $go, "<", "/run/go"); <$go>;
  # The lock is lost: this must fail, and must not hang.
  $SIG{ALRM} = sub { print "hangs\n"; exit 1 }; alarm 90;
  sysseek $f, 0, 0; my $n = syswrite $f, "stale lock"; my $written = defined $n && close $f;
  print $written ? "written\n" : "refused: $!\n";' >/run/holder &
holder=$!
# Another program of the same client, with a lock that no other client asks for.
perl -e '
  use Fcntl ":flock"; use IO::Handle; $| = 1;
  open(my $h, "+<", "/run/mnt/h") or die "open: $!"; flock($h, LOCK_EX) or die "lock: $!"; print "locked\n";
  open(my $go, "<", "/run/go_on"); <$go>;
  $SIG{ALRM} = sub { print "hangs\n"; exit 1 }; alarm 90;
  sysseek $h, 0, 0; my $n = syswrite $h, "still locked\n"; my $synced = defined $n && $h->sync;
  my $said = $synced ? "written\n" : "refused: $!\n";
  flock($h, LOCK_UN) or $said = "not unlocked: $!\n"; alarm 0; print $said;
  # The file stays open.
  open(my $end, "<", "/run/end"); <$end>;' >/run/bystander &
bystander=$!
for who in holder bystander; do
  for _ in $(seq 100); do grep -q locked /run/$who && break; sleep 0.1; done
  grep -q locked /run/$who || fail "no lock: $(cat /run/$who)"
done
if try_lock $M2/f; then fail 'both have the lock'; fi
sleep 8
if try_lock $M2/f; then fail 'a client that renews its lease lost its lock'; fi

/sbin/ip route add blackhole 192.0.2.3/32
cut=$(date +%s%N)
if try_lock $M2/f; then fail 'the lease was not over yet'; fi
until try_lock $M2/f; do
  (($(date +%s%N) - cut < (lease + 25) * 1000000000)) || fail 'the lock of a lost client is not given to others'
  sleep 0.2
done
echo "taken after $((($(date +%s%N) - cut) / 1000000)) ms"
(($(date +%s%N) - cut > 500000000)) || fail 'taken before the lease was over'
echo second >$M2/f; sync $M2/f

/sbin/ip route del blackhole 192.0.2.3/32
echo >/run/go; wait $holder || fail "the holder: $(cat /run/holder)"
grep -q '^refused: Input/output error' /run/holder || fail "what was written under the lost lock: $(cat /run/holder)"
[[ $(cat $M2/f) == second ]] || fail "the file holds $(cat $M2/f)"
# It lost no more than that: version 4.0 cannot tell the client what it lost, so there it loses all.
echo >/run/go_on
for _ in $(seq 900); do grep -q 'written\|refused\|not unlocked\|hangs' /run/bystander && break; sleep 0.1; done
if [[ $held_by != 4.0 ]]; then
  grep -q '^written' /run/bystander || fail "the client lost another lock: $(cat /run/bystander)"
  try_lock $M2/h || fail 'a lock that was released is held'
  exec 6>&-; try_lock $M2/f || fail 'the lock of the second client is lost'
fi
timeout 100 bash -c 'echo >/run/end' || fail "the bystander has ended: $(cat /run/bystander)"; wait $bystander
# The first client then works again: it sees the file's content, waits for the lock, and gets it.
[[ $(cat $M/f) == second ]] || fail "the client that was cut off reads $(cat $M/f)"
if (exec 7>>$M/f; flock -n 7); then fail 'the lock is held'; fi
exec 6>&-
(exec 7>>$M/f; flock -w 20 7; echo third >&7) || fail 'no lock after its release'
[[ $(cat $M2/f) == $'second\nthird' ]] || fail "in the end $(cat $M2/f)"
try_lock $M2/f || fail 'the first client has not released the lock'
exec 6>&-
# It has nothing to recover any more.
tests() { awk -v of="$1" '$0 ~ " mounted on " of " " { its = 1; next } / mounted on / { its = 0 } its && $1 == "TEST_STATEID:" { print $2 }' /proc/self/mountstats; }
before=$(tests $M)
for _ in $(seq 10); do cat $M/f >/dev/null; done
[[ $(tests $M) == "$before" ]] || fail "the client still tests its state: $before, $(tests $M)"
umount $M2 $M
echo "lease $held_by $taken_by $lease: ok"
