# Two clients: one opens what the other closed.

close_to_open() { # scenario
  perl -e '
    my ($here, $there) = @ARGV; sub put { open(my $f, ">", $_[0]) or die "$_[0]: $!"; print $f $_[1]; close $f or die "close: $!" } sub get { open(my $f, "<", $_[0]) or return "$!"; local $/; my $t = <$f>; $t }
    for my $i (1 .. 60) { my ($w, $r) = $i % 2 ? ($here, $there) : ($there, $here); my $text = sprintf("value %06d", $i); put("$w/same", $text); my $got = get("$r/same"); print "$i: got $got\n" if $got ne $text }
    for my $i (1 .. 20) { my ($w, $r) = $i % 2 ? ($here, $there) : ($there, $here); put("$w/size", "x" x (5000 * $i % 30011)); my $n = length get("$r/size"); print "$i: $n\n" if $n != 5000 * $i % 30011 }
    put("$here/r", "one"); print get("$there/r"), "\n"; put("$here/n", "two"); rename "$here/n", "$here/r"; print get("$there/r"), "\n"; unlink "$here/r"; print get("$there/r"), "\n";
    put("$here/r", "again"); print get("$there/r"), "\n"; chmod 0, "$there/r"; open(my $f, "<", "$here/r"); printf "%o\n", (stat $f)[2]; truncate "$here/r", 2; print get("$there/r"), "\n";
    mkdir "$there/d"; put("$there/d/x", "in"); print get("$here/d/x"), "\n"; put("$here/d/y", "too"); print join(" ", map { s/.*\///r } glob "$there/d/*"), "\n"' "$here" "$there"
}

changes_behind_the_server() { # scenario
  [[ $vers != local ]] || inapplicable 'there is no server'
  # New files each time: the server delegates a file that a client opens repeatedly, and then the client does not ask.
  local i text
  for i in $(seq 1 12); do
    echo 'before 0000' >"$direct/f$i"; cat "f$i" "$there/f$i" >/dev/null
    text=$(printf 'behind %04d' "$i"); echo "$text" >"$direct/f$i"; sleep 0.03
    [[ $(cat "f$i") == "$text" ]] || fail "round $i: $(cat "f$i")"
    [[ $(cat "$there/f$i") == "$text" ]] || fail "round $i, the other client: $(cat "$there/f$i")"
  done
  printf 'behind 0012' >"$direct/f"
  mv "$direct/f" "$direct/g"; mkdir "$direct/d"; echo in >"$direct/d/x"; [[ $(cat "$there/g") == 'behind 0012' && $(cat "$there/d/x") == in && ! -e $there/f ]] || fail names
  truncate -s 6 "$direct/g"; [[ $(cat "$there/g") == behind ]] || fail truncate
  echo mine >h; [[ $(cat "$direct/h") == mine ]] || fail 'what was closed is in the exported file'
}

weirs_own_client_beside_linux() { # scenario
  [[ $vers != local ]] || inapplicable 'there is no server'
  local url=nfs://$S/$(basename "$here") i
  for i in 1 2; do
    perl -e 'print "$ARGV[0]" x 300000' "$i" >f; [[ $("$weir" cat -o "vers=$vers" "$url/f" | md5sum) == "$(md5sum <f)" ]] || fail "round $i: weir reads other bytes"
    perl -e 'print "$ARGV[0]" x 300000' "w$i" >/run/in; "$weir" cp -o "vers=$vers" /run/in "$url/f"; cmp /run/in f || fail "round $i: the Linux client reads other bytes"
  done
  "$weir" ls -o "vers=$vers" "$url" | grep -q f || fail ls
}
