# tree.sh VERS REPO: copies trees of real files in and out through a mount and compares them.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
vers=$1 repo=$2
mount_weir "$vers"
mkdir "$M/v$vers"; cd "$M/v$vers"

# A Debian package's contents, with its links and modes.
dpkg -L perl-base grep sed | while read -r f; do [[ -f $f || -L $f ]] && echo "$f"; done | tar cf /run/in.tar -T -
mkdir /run/in in; tar xf /run/in.tar -C /run/in; tar xf /run/in.tar -C in
cd /; umount $M; mount_weir "$vers"; cd "$M/v$vers"
diff -r --no-dereference /run/in in || fail 'the tree differs after a remount'
(cd /run/in && find . -printf '%p %y %m %s %l\n' | grep -v ' d ' | sort) >/run/a
(cd in && find . -printf '%p %y %m %s %l\n' | grep -v ' d ' | sort) >/run/b
cmp /run/a /run/b || fail 'modes, sizes or links differ'
mkdir /run/out; cp -a in/. /run/out; diff -r --no-dereference /run/in /run/out || fail 'the tree differs copied out'

# A git clone, verified by git.
git -c safe.directory='*' clone -q --no-hardlinks "$repo" clone
git -c safe.directory='*' -C clone fsck --full 2>&1 | grep -iE 'error|missing|corrupt' && fail 'git fsck'
[[ -z $(git -c safe.directory='*' -C clone status --porcelain) ]] || fail 'git status is not clean'

# Names and sizes change.
echo hello >a; mv a b; [[ $(cat b) == hello && ! -e a ]] || fail rename
mkdir d; mv b d/c; ln d/c d/e; [[ $(stat -c %h d/c) == 2 ]] || fail link
ln -s c d/s; [[ $(readlink d/s) == c && $(cat d/s) == hello ]] || fail symlink
truncate -s 3 d/c; [[ $(cat d/e) == hel ]] || fail 'truncate down'
truncate -s 5000 d/c; [[ $(stat -c %s d/e) == 5000 ]] || fail 'truncate up'
[[ $(tail -c +4 d/c | tr -d '\0' | wc -c) == 0 ]] || fail 'the extension is not zeros'
chmod 640 d/c; [[ $(stat -c %a d/e) == 640 ]] || fail chmod
touch -d 2001-02-03T04:05:06Z d/c; [[ $(stat -c %Y d/e) == 981173106 ]] || fail 'set times'
mkdir sub; (cd sub; seq 1 500 | while read -r i; do echo "$i" >"file $i"; done); [[ $(ls sub | wc -l) == 500 ]] || fail 'many files'
printf 'x' >"$(printf 'n%.0s' {1..255})"; [[ $(ls n* | wc -c) == 256 ]] || fail 'long name'
if mkdir sub 2>/dev/null; then fail 'mkdir of an existing name'; fi
if rmdir sub 2>/dev/null; then fail 'rmdir of a full directory'; fi
exec 5<d/c; rm d/c d/e; [[ $(head -c 3 <&5) == hel ]] || fail 'an open file is gone with its name'; exec 5<&-
df $M >/dev/null || fail df
rm -r sub d clone in n*; [[ -z $(ls -A) ]] || fail "left over: $(ls -A)"

# A sparse file of 2 GiB with a little data.
truncate -s 2G big; printf front | dd of=big conv=notrunc status=none; printf back | dd of=big bs=1 seek=$((2 * 1024 * 1024 * 1024 - 4)) conv=notrunc status=none
cd /; umount $M; mount_weir "$vers"; cd "$M/v$vers"
[[ $(stat -c %s big) == 2147483648 && $(head -c 5 big) == front && $(tail -c 4 big) == back ]] || fail 'the big file'
[[ $(stat -c %b big) -lt 1024 ]] || fail "the big file takes $(stat -c %b big) blocks"
rm big; cd /; rmdir "$M/v$vers"; umount $M || fail umount
echo "tree vers=$vers: ok"
