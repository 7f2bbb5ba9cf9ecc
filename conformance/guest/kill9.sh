# kill9.sh DIR VERS: writes and fsyncs while the server is killed and restarted; DIR is the exported directory,
# accessed directly. The script writes a signal, alternately KILL and TERM, to DIR.kill; the server's loop sends it, and
# writes the signal and the server's exit status to DIR.killed.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$1 vers=$2
mount_weir "$vers"
perl - "$M/log" "$dir" <<'P'
use strict; use IO::Handle;
my ($path, $dir) = @ARGV;
open(my $f, '>', $path) or die "open: $!";
my $kills = 0;
for my $i (1 .. 120) {
  my $record = sprintf("%08d:%s\n", $i, 'x' x (8000 + $i));
  syswrite($f, $record) == length($record) or die "write $i: $!";
  # Only a server that has started is killed.
  if ($i % 40 == 20) { killed(); $f->sync or die "fsync $i: $!"; open(my $k, '>', "$dir.asked") or die; print $k $kills++ % 2 ? "TERM" : "KILL"; close $k; rename "$dir.asked", "$dir.kill" or die }
  if ($i % 5 == 0) {
    $f->sync or die "fsync $i: $!";
    # Data that fsync acknowledged must now be in the exported file.
    my $want = tell_size($i);
    my $have = -s "$dir/log";
    die "fsync of record $i acknowledged, but the file has $have bytes of $want" if $have < $want;
  }
}
close $f or die "close: $!";
killed();
print "wrote 120 records, asked for $kills kills\n";
# Waits for the last requested kill.
sub killed { select(undef, undef, undef, 0.01) while -e "$dir.kill" }
sub tell_size { my $n = shift; my $s = 0; $s += 8 + 1 + 8000 + $_ + 1 for 1 .. $n; $s }
P
umount $M; mount_weir "$vers"
cmp "$M/log" "$dir/log" || fail 'the file differs'
perl -ne 'BEGIN { $i = 0 } $i++; /^(\d+):(x+)$/ && $1 == $i && length($2) == 8000 + $i or die "record $i is damaged"; END { $i == 120 or die "$i records" }' "$M/log"
umount $M
[[ $(tr '\n' ' ' <"$dir.killed") == 'KILL 137 TERM 0 KILL 137 ' ]] || fail "the server ended with $(cat "$dir.killed")"
echo "kill9 vers=$vers: ok"
