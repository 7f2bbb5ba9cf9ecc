# Programs that use files in earnest.

builds_a_program() { # scenario
  [[ $vers != local ]] || skip 'known to build'
  [[ -n $source_tar ]] || skip 'no source: WEIR_SOURCE names a tar file of one'
  command -v gcc make >/dev/null || skip 'needs gcc and make'
  tar xf "$source_tar"; mkdir /run/tree; tar xf "$source_tar" -C /run/tree; diff -r --no-dereference . /run/tree || fail 'extracted, it differs'
  (cd */; make -s CFLAGS='-O0 -w -D_FILE_OFFSET_BITS=64' all >/run/make.log 2>&1 || { tail /run/make.log; fail 'it does not build'; }
    [[ $(make -n CFLAGS='-O0 -w -D_FILE_OFFSET_BITS=64' bzip2 2>/dev/null | grep -c gcc) == 0 ]] || fail 'make would build again'
    make -s CFLAGS='-O0 -w -D_FILE_OFFSET_BITS=64' check >/run/make.log 2>&1 || { tail /run/make.log; fail 'its tests fail'; })
  (cd "$there"/*/; ./bzip2 -k9 README; ./bzip2 -dc README.bz2 | cmp - README) || fail 'the other client cannot run it'
  rm -r */ /run/tree; [[ -z $(ls -A) ]] || fail 'left over'
}

stress() { # scenario
  [[ $vers != local ]] || skip 'known to pass'
  command -v stress-ng >/dev/null || skip 'needs stress-ng'
  local more=; if [[ $vers == 4.2 ]]; then more='--fallocate 1 --fallocate-bytes 4M'; fi
  # One round of these is thousands of links.
  if ((stress_seconds > 30)); then more+=' --link 1 --symlink 1'; fi
  stress-ng --temp-path . --timeout "$stress_seconds" --verify --oom-avoid --no-rand-seed --metrics-brief \
    --hdd 1 --hdd-bytes 4M --dentry 1 --dentries 100 --rename 1 --seek 1 --seek-size 4M --sync-file 1 --sync-file-bytes 4M \
    --utime 1 --chmod 1 --chown 1 --dir 1 --dir-dirs 100 --dirdeep 1 --dirdeep-dirs 1 --dirdeep-inodes 200 --filename 1 --fstat 1 --getdent 1 --open 1 --open-max 200 \
    --readahead 1 --readahead-bytes 4M --mmap 1 --mmap-file --mmap-bytes 4M --touch 1 $more \
    >/run/stress.log 2>&1 || { grep -E 'fail|error' /run/stress.log | head -20; tail -5 /run/stress.log; fail 'stress-ng'; }
  [[ -z $(find . -name '.nfs*') ]] || fail "left over: $(find . -name '.nfs*' | head -3)"
}
