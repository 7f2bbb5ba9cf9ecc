# Sparse files, and the operations of version 4.2 for them.

# map FILE: prints its data and holes.
map() { xfs_io -r -c 'seek -a -r 0' "$1"; }

hole_maps() { # scenario
  since 4.2 || inapplicable 'SEEK came with 4.2'
  xfs_io -f -c 'truncate 1000000' a; map a
  xfs_io -f -c 'pwrite -q 0 4096' -c 'pwrite -q 65536 8192' -c 'pwrite -q 500000 1' -c 'truncate 2000000' b; map b
  for i in $(seq 0 3 60); do echo "pwrite -q $((i * 4096)) 4096"; done | xfs_io -f c >/dev/null; map c
  sync c; map c; xfs_io -c 'pwrite -q 8192 100' c; map c; truncate -s 30000 c; map c; truncate -s 100000 c; map c
  touch empty; map empty; perl -e 'open(my $f, "<", "b"); for ([0, 3], [0, 4], [5000, 3], [5000, 4], [1999999, 3], [1999999, 4], [2000000, 3], [2000000, 4], [1 << 50, 3], [505000, 3]) {
    my $at = sysseek $f, $$_[0], $$_[1]; print "$$_[0] $$_[1]: ", defined $at ? $at + 0 : "$!", "\n" }'
}

fallocates() { # scenario
  since 4.2 || inapplicable 'ALLOCATE and DEALLOCATE came with 4.2'
  fallocate -l 1M f; stat -c %s f "$there/f"; (( $(stat -c %b f) >= 2048 )) && echo allocated
  perl -e 'print "d" x 1048576' | dd of=f conv=notrunc status=none
  fallocate -p -o 4096 -l 8192 f; md5sum <f; md5sum <"$there/f"; map f; stat -c %s f
  fallocate -p -o 100001 -l 55555 f; md5sum <f; md5sum <"$there/f"; map f
  try fallocate -p -o 5000000 -l 4096 f; stat -c %s f; fallocate -o 2000000 -l 1000 f; stat -c %s f; md5sum <"$there/f"
  fallocate -n -o 4000000 -l 100000 f 2>/dev/null || true; stat -c %s f
  # It compares whole blocks of st_blksize, which is 1 MiB here.
  perl -e 'print "e" x 1048576, "\0" x 3145728, "f" x 1048576' >g; fallocate -d g; map g; md5sum <"$there/g"
  try fallocate -p -o 0 -l 0 f; chmod 444 f; try as 1000 fallocate -l 1M f
  fallocate -p -o 0 -l 1048576 f; md5sum <f
}

# Operations that a version lacks fail without an effect.
fallocates_refused() { # scenario
  [[ $vers != local ]] || inapplicable 'a local file system can do more'
  echo text >f; local how ways=(-c -i -z)
  [[ $vers == 4.2 ]] || ways+=('' -p)
  for how in "${ways[@]}"; do
    [[ $(try fallocate $how -l 4096 f) == 'failed: '*@(not supported|unsupported) ]] || fail "fallocate $how: $(try fallocate $how -l 4096 f)"
  done
  [[ $(cat f) == text ]] || fail 'the file changed'
}

copies() { # scenario
  perl -e 'print chr(65 + $_ % 26) x 100003 for 1 .. 30' >f; truncate -s 8000000 f; xfs_io -c 'pwrite -q -S 0x31 6000000 100000' f
  cp f g; cmp f g && echo same; cp --sparse=always f h; cmp f h && echo same; cp --reflink=auto f "$there/i"; cmp f i && echo same
  xfs_io -f -c 'truncate 100000' -c "copy_range -s 50000 -d 1000 -l 70001 f" j; md5sum <j; md5sum <"$there/j"
  xfs_io -c 'copy_range -s 0 -d 200000 -l 100000 f' f; md5sum <f; try xfs_io -c 'copy_range -s 0 -d 1000 -l 100000 f' f
  xfs_io -f -c 'copy_range -s 7999990 -d 0 -l 100 f' k; stat -c %s k; xfs_io -c 'copy_range -s 9000000 -d 0 -l 100 f' k; stat -c %s k
  chmod 400 f; as 1000 sh -c 'cp f l' 2>/dev/null || echo refused; tar cSf t.tar f h; mkdir x; tar xf t.tar -C x; cmp f x/f && cmp h x/h && echo same
}
