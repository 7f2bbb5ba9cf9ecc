# File content: open, mapped and large files, and times.

unlinked_while_open() { # scenario
  perl -MFcntl -e '
    open(my $f, "+>", "x") or die; syswrite $f, "hello"; unlink "x" or print "unlink: $!\n"; print -e "x" ? "there\n" : "gone\n";
    sysseek $f, 0, 0; sysread $f, my $b, 9; print "$b\n"; syswrite $f, " world"; print -s $f, "\n"; truncate $f, 8 or print "truncate: $!\n";
    sysseek $f, 0, 0; sysread $f, $b, 99; print "$b\n"; chmod(0600, $f) or print "chmod: $!\n";
    open(my $g, ">", "x"); print $g "another"; close $g; sysseek $f, 0, 0; sysread $f, $b, 99; print "$b\n";
    close $f or print "close: $!\n"; open($g, "<", "x"); print <$g>, "\n"'
  ls -A; rm x
  # A file never written, a file with two openers, and a file replaced by a rename.
  exec 5>a 6<a; rm a; echo text >&5; read -r line <&6; echo "$line"; exec 5>&- 6<&-; ls -A
  echo old >o; exec 5<o; echo new >n; mv n o; read -r line <&5; echo "$line $(cat o)"; exec 5<&-; ls -A
  mkdir d; exec 5>d/f; rm d/f; exec 5>&-; rmdir d; ls -A
}

# A file removed or replaced by another client: an open file stays as it was or becomes stale, never another file.
removed_elsewhere() { # scenario
  [[ $vers != local ]] || inapplicable 'there is no elsewhere'
  local way
  for way in "$there" "$direct"; do
    echo 'the first' >f; sync f; exec 5<f
    rm "$way/f"; echo 'the other' >"$way/g"; mv "$way/g" "$way/f"
    perl -e 'open(my $f, "<&=5"); my $n = sysread($f, my $b, 100, 0); die "read <$b>\n" if defined $n && $b ne "the first\n";
      die "$!\n" unless defined $n || $!{ESTALE} || $!{EIO}; my @s = stat $f; die "stat: $!\n" unless @s || $!{ESTALE}' || fail "an open file, $way"
    exec 5<&-
    # The server notices changes of a delegated file by local programs within seconds.
    if [[ $way == "$direct" ]]; then for _ in $(seq 100); do [[ $(cat f) != 'the other' ]] || break; sleep 0.2; done; fi
    [[ $(cat f) == 'the other' ]] || fail "the new file, $way: $(cat f 2>&1)"
    rm -f f; [[ ! -e $way/f ]] || fail 'remains'
    mkdir d; touch d/x; (cd d; rm -r "$way/d"; if ls -A . >/dev/null 2>&1 && touch y 2>/dev/null; then fail 'a removed directory takes files'; fi)
    [[ ! -e d ]] || fail "a removed directory is there, $way"
  done
}

mapped() { # scenario
  xfs_io -f -c 'truncate 300000' -c 'mmap -rw 0 300000' -c 'mwrite -S 0x61 4097 8191' -c 'mwrite -S 0x62 299990 10' -c 'msync -s' m
  md5sum <m; md5sum <"$there/m"; cat "$there/m" | tr -d '\0' | wc -c
  # Written with write(2) and read through a mapping, before and while mapped.
  xfs_io -c 'mmap -rw 0 300000' -c 'mread 4090 4' -c 'pwrite -q -S 0x63 4090 20' -c 'mread -v 4088 24' m | grep -v ops
  # No msync(2): closing writes the pages back.
  xfs_io -c 'mmap -rw 0 300000' -c 'mwrite -S 0x64 100000 100000' m; md5sum <"$there/m"
  # Private mappings do not change the file, nor do stores past its end.
  xfs_io -r -c 'mmap -rwp 0 4096' m 2>/dev/null; truncate -s 5000 m; xfs_io -c 'mmap -r 0 8192' -c 'mread -v 4990 20' m | grep -v ops; md5sum <m
  truncate -s 9000 m; xfs_io -c 'mmap -rw 0 9000' -c 'mwrite -S 0x65 8999 1' m; tail -c 4001 "$there/m" | od -c | head
}

# O_DIRECT beside cached I/O, by the same client and by another.
direct_io() { # scenario
  xfs_io -f -d -c 'pwrite -q -S 0x71 0 1048576' -c 'pwrite -q -S 0x72 8192 4096' -c 'pwrite -q -S 0x73 2097152 65536' f
  stat -c %s f; md5sum <f; md5sum <"$there/f"; xfs_io -d -r -c 'pread -v 8192 4096' f | grep -v ops | md5sum
  xfs_io -c 'pwrite -q -S 0x74 5000 3000' f; xfs_io -d -r -c 'pread -v 4096 4096' f | grep -v ops | md5sum
  xfs_io -d -c 'pwrite -q -S 0x75 4096 4096' "$there/f"; head -c 9000 f | tail -c +4000 | md5sum
  dd if=f of=g bs=1M iflag=direct oflag=direct status=none 2>/dev/null || dd if=f of=g bs=64k iflag=direct status=none; cmp f g && echo same
  truncate -s 10000 f; xfs_io -d -r -c 'pread 8192 4096' f | head -1; xfs_io -d -r -c 'pread 12288 4096' f | head -1
  # Several writers of one file, each with its own blocks.
  for i in 0 1 2 3; do xfs_io -f -d -c "pwrite -q -b 65536 -S 0x3$i $((i * 262144)) 262144" h & done; wait; md5sum <h
}

beyond_two_tebibytes() { # scenario
  local two=$((2 << 40))
  xfs_io -f -c "pwrite -q -S 0x41 $((two - 5)) 10" -c "pwrite -q -S 0x42 $((4 * two)) 3" -c 'pwrite -q -S 0x43 4294967290 12' f
  stat -c %s f "$there/f"; [[ $(stat -c %b f) -lt 128 ]] || echo "takes $(stat -c %b f) blocks"
  for at in $((two - 8)) $((4 * two - 3)) 4294967288 $((3 * two)); do xfs_io -r -c "pread -v $at 16" "$there/f" | grep -v -e ops -e bytes; done
  xfs_io -c "mmap -rw $((two - 4096)) 8192" -c "mwrite -S 0x44 $((two - 1)) 2" f; xfs_io -r -c "pread -v $((two - 8)) 16" "$there/f" | grep -v -e ops -e bytes
  truncate -s $((two + 1)) f; stat -c %s "$there/f"; xfs_io -r -c "pread -v $((two - 8)) 16" "$there/f" | grep -v -e ops -e bytes
  truncate -s 15T f; stat -c %s f; truncate -s 1 f; stat -c '%s' "$there/f"; rm f
}

truncates() { # scenario
  perl -MFcntl -e '
    my $seed = 12345; sub rnd { $seed = ($seed * 1103515245 + 12345) % 2147483648; $seed % $_[0] }
    open(my $f, "+>", "t") or die; my $want = "";
    for my $i (1 .. 150) {
      my $at = rnd(200000);
      if (rnd(2)) { my $n = rnd(30000) + 1; my $b = chr(65 + $i % 26) x $n; sysseek $f, $at, 0; syswrite $f, $b;
        $want .= "\0" x ($at - length $want) if $at > length $want; substr($want, $at, $n < length($want) - $at ? $n : length($want) - $at) = $b }
      else { truncate $f, $at or print "truncate: $!\n"; $want = $at > length $want ? $want . "\0" x ($at - length $want) : substr $want, 0, $at }
      if ($i % 10 == 0) { sysseek $f, 0, 0; my $got = ""; while (sysread $f, my $b, 65536) { $got .= $b } print "differs at $i\n" if $got ne $want }
      if ($i % 37 == 0) { close $f; open($f, "+<", "t") or die }
    }'
  md5sum <"$there/t"; truncate -s 0 t; stat -c %s t "$there/t"; try truncate -s 17T t; perl -e 'truncate("t", -1) or print "$!\n"; truncate(".", 0) or print "$!\n"'
}

times() { # scenario
  for when in 1970-01-01T00:00:00Z 1970-01-01T00:00:01.000000001Z 2001-09-09T01:46:40.123456789Z 2038-01-19T03:14:07.999999999Z 2038-01-19T03:14:08Z 2100-02-28T12:00:00.5Z; do
    touch -d "$when" f; stat -c '%.X %.Y' f "$there/f"; done
  touch -a -d 2010-01-01Z f; touch -m -d 2011-01-01Z f; stat -c '%X %Y' f
  perl -MTime::HiRes=sleep,stat -e '
    sub times { my @s = stat $_[0]; (@s[9, 10]) } open(my $f, ">", "g"); close $f;
    sub moved { my ($what, $path, $do) = @_; my @a = times($path); sleep 0.02; $do->(); my @b = times($path); printf "%s: mtime %s ctime %s\n", $what, map { $b[$_] <=> $a[$_] } 0, 1 }
    moved("write", "g", sub { open(my $f, ">>", "g"); print $f "x"; close $f }); moved("chmod", "g", sub { chmod 0600, "g" });
    moved("truncate", "g", sub { truncate "g", 0 }); moved("truncate to the same", "g", sub { truncate "g", 0 }); moved("link", "g", sub { link "g", "h" }); moved("unlink", "g", sub { unlink "h" });
    moved("rename", "g", sub { rename "g", "i" ; rename "i", "g" }); moved("read", "g", sub { open(my $f, "<", "g"); <$f> });
    mkdir "d"; moved("create in", "d", sub { open(my $f, ">", "d/x") }); moved("write in", "d", sub { open(my $f, ">", "d/x"); print $f "y"; close $f });
    moved("unlink in", "d", sub { unlink "d/x" }); moved("mkdir in", "d", sub { mkdir "d/e" }); moved("open to truncate", "g", sub { open(my $f, ">", "g"); close $f })'
  touch -d @0 now; begun=$(date +%s); touch now; ended=$(date +%s); stamp=$(stat -c %Y now)
  ((stamp >= begun - 4 && stamp <= ended + 4)) && echo now
  echo x >c; touch -r f c; stat -c '%X %Y' c; cp -p f k; stat -c '%.Y' k
}

# Seconds are unsigned and 32 bits in NFSv3.
times_of_all_centuries() { # scenario
  since 4.0 || inapplicable 'NFSv3 has no time before 1970 or after 2106'
  for when in 1901-12-14Z 1960-06-15T01:02:03.25Z 1969-12-31T23:59:59.999999999Z 2106-02-07T06:28:16Z 2200-01-01Z 2446-05-10Z; do
    touch -d "$when" f; stat -c '%.X %.Y' f "$there/f"; done
}

appends() { # scenario
  perl -e 'my @paths = @ARGV; for my $i (1 .. 100) { my $p = $paths[$i % 2]; open(my $f, ">>", "$p/log") or die "$p: $!"; print $f "line $i\n"; close $f or die }' "$here" "$there"
  md5sum <log; wc -l <"$there/log"
  for i in 1 2 3 4; do perl -MIO::Handle -e 'open(my $f, ">>", "many"); $f->autoflush; print $f "$ARGV[0]-$_\n" for 1 .. 200' $i & done; wait
  sort many | md5sum
}

space() { # scenario
  [[ $vers != local ]] || inapplicable 'compared with the exported file system itself'
  read -r size used <<<"$(df -B1M --output=size,used . | tail -1)"; read -r real_size real_used <<<"$(df -B1M --output=size,used "$direct" | tail -1)"
  [[ $size == "$real_size" ]] || fail "df says $size MiB, it is $real_size"
  ((used - real_used < 500 && real_used - used < 500)) || fail "df says $used MiB are used, it is $real_used"
  read -r inodes <<<"$(df --output=itotal . | tail -1)"; read -r real <<<"$(df --output=itotal "$direct" | tail -1)"
  [[ $inodes == "$real" ]] || fail "df says $inodes inodes, it is $real"
  head -c 1000000 /dev/zero | tr '\0' x >f; sync f; (( $(du -k f | cut -f1) >= 976 && $(du -k f | cut -f1) < 1100 )) || fail "du: $(du -k f)"
}
