# kills.sh DIR SECONDS: Linux's clients of versions 3, 4.1 and 4.2 change names and data while kill-loop.sh kills the
# server of DIR, until DIR.done exists. No call may fail, and each must take effect exactly once. After SECONDS, says
# what they wait for.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$1
watch "$2" "$dir.log"
cat >/run/work.pl <<'P'
use strict; use Fcntl; use Time::HiRes 'time'; use IO::Handle;
my ($mount, $dir, $client) = @ARGV;
my ($i, $longest, $what, $begun) = (0, 0, '', time);
sub done { my ($ok, $op) = @_;
  my $took = time - $begun; ($longest, $what) = ($took, $op) if $took > $longest;
  die "$client: $op $i: $!\n" unless $ok;
  $begun = time }
sub step_done { open(my $f, '>', "$dir.at.$client.new"); print $f "$i\n"; close $f; rename "$dir.at.$client.new", "$dir.at.$client" }
chdir $mount or die "chdir $mount: $!"; done(mkdir("c$client"), 'mkdir'); chdir "c$client" or die $!;
until (-e "$dir.done" || -e "$dir.failed") {
  $i++; $begun = time;
  my $text = "$client:$i:" . ('x' x (100 + 37 * ($i % 400))) . "\n";
  done(sysopen(my $f, "new$i", O_RDWR|O_CREAT|O_EXCL, 0644), 'create');
  done(syswrite($f, $text) == length $text, 'write'); done($f->sync, 'fsync'); done(close($f), 'close');
  done(rename("new$i", "file$i"), 'rename'); done(!-e "new$i", 'old name');
  done(link("file$i", "link$i"), 'link'); done(unlink("link$i"), 'unlink');
  done(symlink("t$i", "sym$i"), 'symlink'); done(rename("sym$i", "moved$i"), 'rename of a link'); done(unlink("moved$i"), 'unlink');
  done(mkdir("dir$i"), 'mkdir'); done(rename("file$i", "dir$i/file"), 'rename into it');
  done(chmod(0600, "dir$i/file"), 'chmod'); done(truncate("dir$i/file", length($text) - 1), 'truncate');
  done(rename("dir$i/file", "file$i"), 'rename out of it'); done(rmdir("dir$i"), 'rmdir');
  # Keeps the number of files small.
  if ($i > 20) { my $old = $i - 20; done(unlink("file$old"), 'unlink of an old one') }
  step_done();
}
printf "LONGEST %s %.1f s (%s)\nSTEPS %s %d\n", $client, $longest, $what, $client, $i;
my @left = sort map { /file(\d+)/ ? $1 : die "$client: $_ is left" } glob '*';
my $from = $i > 20 ? $i - 19 : 1;
my @want = sort $from .. $i; "@left" eq "@want" or die "$client: left are @left, not @want\n";
for my $n (@left) { open(my $f, '<', "file$n") or die "$client: file$n: $!\n"; my $have = <$f>;
  my $want = "$client:$n:" . ('x' x (100 + 37 * ($n % 400))); $have eq $want or die "$client: file$n has " . length($have) . " bytes, not " . length($want) . "\n" }
P
pids=()
for vers in 3 4.1 4.2; do
  mkdir -p "/run/mounts/$vers"
  mount_weir "$vers" nosharecache "/run/mounts/$vers"
  { perl /run/work.pl "/run/mounts/$vers" "$dir" "$vers" || touch "$dir.failed"; } &
  pids+=($!)
done
wait "${pids[@]}"
[[ ! -e $dir.failed ]] || fail "after $(cat "$dir.kills" || echo no) kills"
umount /run/mounts/*
echo "KILLS $(cat "$dir.kills")"
echo 'kills: ok'
