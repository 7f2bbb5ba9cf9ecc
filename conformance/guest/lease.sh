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

echo first >$M/f
mkfifo /run/go
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
for _ in $(seq 100); do grep -q locked /run/holder && break; sleep 0.1; done
grep -q locked /run/holder || fail "no lock: $(cat /run/holder)"
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
# The first client then works again: it sees the file's content, waits for the lock, and gets it.
[[ $(cat $M/f) == second ]] || fail "the client that was cut off reads $(cat $M/f)"
if (exec 7>>$M/f; flock -n 7); then fail 'the lock is held'; fi
exec 6>&-
(exec 7>>$M/f; flock -w 20 7; echo third >&7) || fail 'no lock after its release'
[[ $(cat $M2/f) == $'second\nthird' ]] || fail "in the end $(cat $M2/f)"
umount $M2 $M
echo "lease $held_by $taken_by $lease: ok"
