# copy.sh DIR: the server copies a long file with holes in the background: no byte crosses the wire.
# DIR is the exported directory, read directly for comparison.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$1
mount_weir 4.2
# One copy_file_range(2) for the whole file; cp would copy each extent.
perl -e '
  my ($from, $to) = @ARGV;
  open(my $in, "<", $from) or die; open(my $out, ">", $to) or die;
  for (my $left = -s $in; $left > 0;) {
    my $done = syscall(326, fileno($in), 0, fileno($out), 0, $left, 0);
    $done > 0 or die "copy_file_range: $!";
    $left -= $done;
  }
  close $out or die' "$M/long" "$M/copied" || fail 'copy_file_range'
echo "CALLS COPY $(counted COPY 1) WRITE $(counted WRITE 1) READ $(($(counted READ 1) + $(counted READ_PLUS 1)))"
[[ $(counted COPY 1) -ge 1 && $(counted WRITE 1) == 0 ]] || fail 'the client copied itself'
umount $M
cmp "$dir/long" "$dir/copied" || fail 'the copy differs'
echo 'copy: ok'
