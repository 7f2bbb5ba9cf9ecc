# Directories: large, deep, changing while they are read.

directory_changes_while_read() { # scenario
  perl -e '
    for (1 .. 3000) { open(my $f, ">", sprintf("entry-%05d", $_)) or die "$!"; }
    opendir(my $d, ".") or die; my %seen; my $n = 0;
    while (defined(my $e = readdir $d)) { next if $e =~ /^\./; $seen{$e}++; $n++; if ($n == 500) { for (1 .. 200) { open(my $f, ">", "new-$_") } } if ($n == 1000) { unlink "new-$_" for 1 .. 200 } }
    print scalar(grep { /^entry/ } keys %seen), " ", scalar(grep { $_ > 1 } values %seen), "\n";
    rewinddir $d; $n = 0; while (defined(my $e = readdir $d)) { next if $e =~ /^\./; unlink $e or print "$e: $!\n"; $n++ } print "$n removed\n";
    rewinddir $d; print join(" ", grep { !/^\.\.?$/ } readdir $d), "\n"'
}

directory_positions() { # scenario
  perl -e '
    for (1 .. 700) { open(my $f, ">", "e$_") or die } opendir(my $d, ".") or die; my (@at, @names);
    while (1) { my $p = telldir $d; my $e = readdir $d; last unless defined $e; push @at, $p; push @names, $e }
    print scalar(@names), "\n"; my $wrong = 0; for my $i (0, 1, 2, 350, 700, 701, 100, 600) { seekdir $d, $at[$i]; my $e = readdir $d; $wrong++ if $e ne $names[$i] } print "$wrong\n"'
  ls -A | sort | md5sum; ls -A "$there" | sort | md5sum; find . -type f | wc -l; stat -c %h .
}

deep_directories() { # scenario
  perl -e 'for (1 .. 120) { my $d = "level-$_-with-a-longish-name-to-pass-PATH_MAX"; mkdir $d or die "$!"; chdir $d or die "$!" } open(my $f, ">", "f") or die; print $f "bottom"; close $f;
    open($f, "<", "f"); print <$f>, "\n"; chdir "../../.."; print join(" ", glob "*"), "\n"'
  find . -name f 2>/dev/null | wc -c; rm -r level-1-*; ls
  mkdir a; (cd a; mkdir b; rmdir b; ls -A); try rmdir a/..; try rmdir a/.; mkdir a/c; try rmdir a; rmdir a/c a; try rmdir a; touch f; try rmdir f; try rm -d nothing
}

# The test creates the entries beside the scenarios' directories before it starts the server.
hundred_thousand_entries() { # scenario
  [[ $vers != local ]] || inapplicable 'made for the mount only'
  local many=$here/../many start=$SECONDS
  [[ $(ls -f "$many" | wc -l) == 100002 ]] || fail "listed $(ls -f "$many" | wc -l)"
  [[ $(ls -f "$there/../many" | sort -u | wc -l) == 100002 ]] || fail 'names are listed twice'
  [[ $(cat "$many/entry-077777") == '' && ! -e $many/entry-100000 ]] || fail 'an entry'
  touch "$many/entry-new"; [[ $(ls -f "$many" | wc -l) == 100003 ]] || fail 'a new entry is not listed'; rm "$many/entry-new"
  # Takes seconds, or tens of seconds on a busy machine; quadratic code would take an hour.
  ((SECONDS - start < 300)) || fail "took $((SECONDS - start)) s"
}

# Creates and removes many files.
many_entries_made_and_removed() { # scenario
  perl -e 'my $n = $ARGV[0]; my $start = time; for (1 .. $n) { open(my $f, ">", "e$_") or die "e$_: $!" } opendir(my $d, "."); my $count = grep { /^e/ } readdir $d; print "all\n" if $count == $n;
    unlink "e$_" or die "e$_: $!" for 1 .. $n; rewinddir $d; print scalar(grep { /^e/ } readdir $d), "\n"; print "slow\n" if time - $start > 120 + $n / 100' "$entries"
}
