# Programs with demanding use of files.

builds_a_program() { # scenario
  [[ $vers != local ]] || inapplicable 'known to build'
  [[ -n $source_tar ]] || skip 'no source: WEIR_SOURCE names a tar file of one'
  { command -v gcc && command -v make; } >/dev/null || skip 'needs gcc and make'
  tar xf "$source_tar"; mkdir /run/tree; tar xf "$source_tar" -C /run/tree; diff -r --no-dereference . /run/tree || fail 'extracted, it differs'
  (cd */; make -s CFLAGS='-O0 -w -D_FILE_OFFSET_BITS=64' all >/run/make.log 2>&1 || { tail /run/make.log; fail 'it does not build'; }
    [[ $(make -n CFLAGS='-O0 -w -D_FILE_OFFSET_BITS=64' bzip2 2>/dev/null | grep -c gcc) == 0 ]] || fail 'make would build again'
    make -s CFLAGS='-O0 -w -D_FILE_OFFSET_BITS=64' check >/run/make.log 2>&1 || { tail /run/make.log; fail 'its tests fail'; })
  (cd "$there"/*/; ./bzip2 -k9 README; ./bzip2 -dc README.bz2 | cmp - README) || fail 'the other client cannot run it'
  rm -r */ /run/tree; [[ -z $(ls -A) ]] || fail 'left over'
}

# A source tree; in its long form, 300 directories with a part of a program each, 5,100 files in all.
builds_a_large_tree() { # scenario
  [[ $vers != local ]] || inapplicable 'known to build'
  { command -v gcc && command -v make; } >/dev/null || skip 'needs gcc and make'
  local parts=12; if ((stress_seconds > 30)); then parts=300; fi
  mkdir /run/large; (cd /run/large; perl -e '
    my $parts = shift; my $sum = 0;
    sub put { open(my $f, ">", $_[0]) or die "$_[0]: $!"; print $f $_[1]; close $f or die "$_[0]: $!" }
    for my $p (1 .. $parts) {
      my $d = sprintf "part%03d", $p; mkdir $d; my ($includes, $terms) = ("", "0");
      for my $h (1 .. 12) { put("$d/h$h.h", "#define H_${p}_$h " . ($p * $h) . "\n" . "/* text */\n" x ($h * 9)); $includes .= "#include \"h$h.h\"\n"; $terms .= " + H_${p}_$h"; $sum += $p * $h }
      put("$d/part.c", "${includes}int part$p(void) { return $terms; }\n"); put("$d/text$_", "$p $_\n" x (40 * $_)) for 1 .. 3; symlink "part.c", "$d/link.c";
    }
    put("main.c", join("", map { "int part$_(void);\n" } 1 .. $parts) . "#include <stdio.h>\nint main(void) { printf(\"%d\\n\", 0" . join("", map { " + part$_()" } 1 .. $parts) . "); return 0; }\n");
    put("sum", "$sum\n");
    put("Makefile", "parts := \$(patsubst %.c,%.o,\$(wildcard part*/part.c))\nprogram: main.o \$(parts)\n\tgcc -o \$@ \$^\n%.o: %.c\n\tgcc -O0 -c -o \$@ \$<\n"
      . "\$(parts): %/part.o: \$(foreach n,1 2 3 4 5 6 7 8 9 10 11 12,%/h\$n.h)\ncheck: program\n\t./program | cmp - sum\nclean:\n\trm -f program main.o \$(parts)\n");' $parts
    tar cf /run/large.tar .)
  tar xf /run/large.tar; diff -r --no-dereference . /run/large || fail 'extracted, it differs'
  [[ $(find . -type f | wc -l) == $((parts * 16 + 3)) && $(find "$there" -type l | wc -l) == "$parts" ]] || fail "$(find . -type f | wc -l) files"
  make -s check >/run/make.log 2>&1 || { tail /run/make.log; fail 'it does not build, or its test fails'; }
  make -q program || fail "make would build again: $(make -n program | head -3)"
  # Opening the file shows its new time; until then the client may use cached attributes.
  sleep 1.1; touch "$there/part007/h3.h"; cat part007/h3.h >/dev/null
  [[ $(make -n program | grep -c -- -c) == 1 ]] || fail "a header was touched by the other client, and make would: $(make -n program | head -3)"
  make -s check || fail 'its test fails'
  (cd "$there"; ./program | cmp - sum) || fail 'the other client cannot run it'
  make -s clean; diff -r --no-dereference . /run/large || fail 'cleaned, it differs'
  rm -r part* main.c sum Makefile; rm -r /run/large /run/large.tar
  [[ -z $(ls -A) && -z $(ls -A "$there") && -z $(ls -A "$direct") ]] || fail 'left over'
}

stress() { # scenario
  [[ $vers != local ]] || inapplicable 'known to pass'
  command -v stress-ng >/dev/null || skip 'needs stress-ng'
  local more=; if [[ $vers == 4.2 ]]; then more='--fallocate 1 --fallocate-bytes 4M'; fi
  # One round makes thousands of links.
  if ((stress_seconds > 30)); then more+=' --link 1 --symlink 1'; fi
  stress-ng --temp-path . --timeout "$stress_seconds" --verify --oom-avoid --no-rand-seed --metrics-brief \
    --hdd 1 --hdd-bytes 4M --dentry 1 --dentries 100 --rename 1 --seek 1 --seek-size 4M --sync-file 1 --sync-file-bytes 4M \
    --utime 1 --chmod 1 --chown 1 --dir 1 --dir-dirs 100 --dirdeep 1 --dirdeep-dirs 1 --dirdeep-inodes 200 --filename 1 --fstat 1 --getdent 1 --open 1 --open-max 200 \
    --readahead 1 --readahead-bytes 4M --mmap 1 --mmap-file --mmap-bytes 4M --touch 1 $more \
    >/run/stress.log 2>&1 || { grep -E 'fail|error' /run/stress.log | head -20; tail -5 /run/stress.log; fail 'stress-ng'; }
  [[ -z $(find . -name '.nfs*') ]] || fail "left over: $(find . -name '.nfs*' | head -3)"
}
