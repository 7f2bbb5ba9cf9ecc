# Names, links and special files.

names_long() { # scenario
  local name=$(printf 'n%.0s' {1..255}) accents=$(printf 'é%.0s' {1..127})
  echo x >"$name"; cat "$name"; echo y >"$accents"; mv "$accents" "${accents}z"
  ls | while read -r entry; do echo "${#entry} $(printf %s "$entry" | md5sum)"; done
  for command in touch mkdir 'ln -s x' mkfifo "ln $name" "mv $name"; do try $command "${name}n"; done
  try cat "${name}n"; try cat "$(printf 'n%.0s' {1..1000})"
  mv "$name" short; cat short; rm short "${accents}z"; ls -A
}

# Names are bytes, of any encoding; the file system below decides.
names_of_any_bytes() { # scenario
  perl -e '
    my @names = ("\xff\xfe", "\xc3\x28", "caf\xe9", "caf\xc3\xa9", "cafe\xcc\x81", "a\nb", " lead", "trail ", "-rf", "...", "back\\slash",
      "\x01\x7f", "*?[", "\xf0\x9f\x90\xa2", "CASE", "case", "a:b", "~", "\xed\xa0\x80");
    for (@names) { open(my $f, ">", "./$_") or print unpack("H*", $_), ": $!\n"; print $f $_; close $f or print "close: $!\n" }
    sub list { opendir(my $d, "."); print join(" ", sort map { unpack "H*", $_ } grep { !/^\.\.?$/ } readdir $d), "\n" }
    list();
    for (@names) { open(my $f, "<", "./$_"); my $text = <$f> . (<$f> // ""); print "$text\n" if $text ne $_; rename $_, "r$_" or print "rename: $!\n" }
    list();
    symlink "\xff/\xfe", "link" or print "symlink: $!\n"; print unpack("H*", readlink "link"), "\n";
    mkdir "d\xff"; mkdir "d\xff/e\xff"; print -d "d\xff/e\xff" ? "dir\n" : "no dir\n"; rmdir "d\xff/e\xff"; rmdir "d\xff";
    unlink("r$_") or print "unlink: $!\n" for @names; unlink "link"; list();'
}

symlinks() { # scenario
  ln -s b a; ln -s a b; try cat a; try stat -L b; try ls a/x
  ln -s self self; try touch self; try mkdir self/d
  ln -s nowhere dangling; try cat dangling; echo made >dangling; cat nowhere; stat -c '%F %s %a' dangling a
  local long=$(printf 'd/%.0s' {1..2047}); ln -s "${long}e" long; readlink long | wc -c; try cat long
  try ln -s "$(printf 'x%.0s' {1..4096})" longer
  mkdir d; echo in >d/f; ln -s d dir; cat dir/f; try rmdir dir; mv dir moved; readlink moved; rm -r moved; cat d/f
  ln -s f d/rel; cat d/rel; for i in $(seq 1 41); do ln -s "c$((i - 1))" "c$i"; done; echo end >c0; try cat c40; try cat c41
}

hard_links() { # scenario
  echo one >f; mkdir d
  for i in $(seq 1 100); do ln f "d/l$i"; done
  stat -c '%h %s' f d/l77; echo two >>d/l5; cat d/l99; chmod 640 d/l1; stat -c %a f
  rm f; stat -c %h d/l1; [[ $(stat -c %i d/l1) == "$(stat -c %i d/l2)" ]] && echo same
  ln -s l1 d/s; ln d/s d/s2; stat -c '%F %h' d/s2; try ln d e; try ln d/l1 d/l2; try ln nothing x
  mv d/l3 d/l4; perl -e 'rename "d/l3", "d/l4" or print "$!\n"'; ls d | wc -l; rm d/l*; ls d
}

renames() { # scenario
  echo a >a; echo b >b; mv a b; cat b; ls
  mkdir d e; touch d/x; try mv -T d e; ls e; mkdir f; try mv -T f e; try mv -T b e; try mv -T e b; try mv -T e e/sub
  perl -e 'for (["b", "f"], ["f", "b"], ["e", "f"], ["f", "e"], ["none", "b"], ["e", "e/x/y"], ["e/.", "z"], [".", "z"], ["b", "none/b"]) {
    print "$$_[0] to $$_[1]: ", rename($$_[0], $$_[1]) ? "ok" : "$!", "\n" }'
  mkdir deep; mkdir deep/er; mv deep/er up; ls -d deep up; (cd up; mv ../deep .; mv deep ..); stat -c %h .
  ln b c; perl -e 'print rename("b", "c") ? "ok\n" : "$!\n"'; ls
  mkdir o; perl -e 'open my $f, ">", "o/f"; print $f "old"; close $f; open $f, "<", "o/f"; open my $g, ">", "o/g"; print $g "new"; close $g;
    rename "o/g", "o/f" or print "$!\n"; print scalar(<$f>), "\n"; open $g, "<", "o/f"; print scalar(<$g>), "\n"'
  ls -A o
}

special_files() { # scenario
  mkfifo -m 640 p; (echo through >p) & cat p; wait
  perl -MSocket -e 'socket(my $s, PF_UNIX, SOCK_STREAM, 0); bind($s, sockaddr_un("sock")) or print "bind: $!\n"; listen($s, 1);
    socket(my $c, PF_UNIX, SOCK_STREAM, 0); connect($c, sockaddr_un("sock")) or print "connect: $!\n"'
  mknod -m 600 null c 1 3; mknod loop b 7 1; mknod big c 4095 1048575
  stat -c '%n %F %t:%T %a %h %s' p sock null loop big; echo away >null; head -c 3 null | wc -c
  ln null again; mv sock moved; stat -c '%F %h' again moved; chown 12:34 p; stat -c '%u:%g' p
  chmod 777 .; try as 1000 mknod x c 1 3; rm p moved null again loop big; ls
}

modes() { # scenario
  mkdir -m 1777 t; as 1000 sh -c 'echo mine >t/mine'; try as 2000 rm -f t/mine; try as 2000 mv t/mine t/yours
  as 2000 touch t/theirs; try as 1000 mv t/mine t/theirs; as 1000 rm t/mine; ls t
  touch s; chown 1000:1000 s; chmod 6777 s; as 2000 sh -c 'echo x >>s'; stat -c %a s; chmod 6755 s; chown 0:0 s; stat -c %a s
  chmod 6777 s; as 2000 truncate -s 0 s; stat -c %a s; chmod 6755 s; echo x >>s; stat -c %a s
  mkdir g; chown 0:3000 g; chmod 2775 g; touch g/f; mkdir g/d; stat -c '%g %a' g/f g/d
  (umask 027; touch u; mkdir ud; mkfifo up; ln -s x us); stat -c '%n %a' u ud up us; (umask 0; touch v; mkdir -m 700 vd); stat -c '%n %a' v vd
  try as 1000 chmod 777 u; try as 1000 chown 1000 u; try as 1000 touch -d 2001-01-01 u; try as 1000 touch v
  echo secret >n; chmod 0 n; try as 1000 cat n; try as 1000 sh -c 'echo x >n'; cat n
  mkdir -m 711 xo; echo in >xo/f; chmod 644 xo/f; try as 1000 cat xo/f; try as 1000 ls xo; try as 1000 touch xo/new
  mkdir -m 744 ro; touch ro/f; try as 1000 cat ro/f; as 1000 ls ro 2>/dev/null | wc -l
  echo group >gr; chown 0:5000 gr; chmod 040 gr; try as 1000 cat gr; try setpriv --reuid 1000 --regid 1000 --groups 7,5000,9 cat gr
  chown 1000:1000 v; chmod 2755 v; try as 1000 chgrp 2000 v; try as 1000 chgrp 1000 v; try as 1000 chmod g+s v; stat -c %a v
  for bit in 4755 2755 1755 7777 0; do chmod $bit v; stat -c %a v; done
  as 1000 perl -e 'print join(" ", map { -r $_ ? 1 : 0, -w $_ ? 1 : 0, -x $_ ? 1 : 0 } qw(n xo ro gr v u)), "\n"'
}
