# exports.sh DIR: several exports of one server. DIR is also accessed directly. It contains weir.toml,
# which the server reads at start and again when DIR/reload appears.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
base=$1
# denied MESSAGE COMMAND...: the command fails with this message.
denied() {
  local said message=$1; shift
  if said=$("$@" 2>&1); then fail "$* did not fail"; fi
  [[ $said == *"$message"* ]] || fail "$* says: $said"
}

# The list of exports and their clients.
for try in $(seq 1 240); do showmount -e $S >/run/shown 2>&1 && break; sleep 0.5; done
cat /run/shown
[[ $(awk '$1 == "/alpha" { print $2 }' /run/shown) == 192.0.2.0/24,2001:db8::/32 ]] || fail 'networks of /alpha'
[[ $(awk '$1 == "/srv/ro" { print $2 }' /run/shown) == '(everyone)' ]] || fail 'networks of /srv/ro'
[[ $(awk '$1 == "/shut" { print $2 }' /run/shown) == 198.51.100.0/24 ]] || fail 'networks of /shut'

for vers in 4.2 4.1 4.0; do
  mount_weir $vers actimeo=1
  # One tree without the exports that this client may not use.
  [[ $(ls $M | xargs) == 'alpha srv' && $(ls $M/srv | xargs) == 'ro squashed' ]] || fail "the tree: $(ls $M $M/srv | xargs)"
  [[ $(cat $M/alpha/notes $M/srv/ro/notes) == $'in alpha\nin ro' ]] || fail 'what is in it'
  denied 'Permission denied' ls $M/shut
  cd $M/srv/ro; cd ../..; [[ $(pwd) == "$M" && $(ls | xargs) == 'alpha srv' ]] || fail 'up from an export'; cd /
  # Each export is a file system of its own once it is used.
  ls $M/srv/squashed/ >/dev/null
  devices=$(stat -c %d $M $M/alpha $M/srv $M/srv/ro $M/srv/squashed | sort -u | wc -l)
  [[ $devices == 4 ]] || fail "$devices file systems: $(stat -c '%n %d' $M $M/alpha $M/srv $M/srv/ro $M/srv/squashed | xargs)"
  for e in alpha srv/ro; do
    [[ $(df --output=target $M/$e | tail -1) == "$M/$e" && $(df --output=size $M/$e | tail -1) -gt 0 ]] || fail "df of $e: $(df $M/$e)"
  done
  [[ $(df --output=source $M/srv/ro | tail -1) == $S:/srv/ro ]] || fail 'the name of /srv/ro'
  # The tree and read-only exports refuse changes; nothing moves from one export to another.
  denied 'Read-only file system' touch $M/new
  denied 'Read-only file system' mkdir $M/srv/new
  denied 'Read-only file system' touch $M/srv/ro/new
  denied 'Read-only file system' chmod 700 $M/srv/ro/notes
  touch $M/alpha/moves
  perl -e 'use Errno; rename $ARGV[0], $ARGV[1] and die; $!{EXDEV} or die "rename: $!"' $M/alpha/moves $M/srv/squashed/moves || fail 'rename across'
  # Squashed users.
  touch $M/srv/squashed/made; [[ $(stat -c %u:%g "$base/squashed/made") == 1234:1235 ]] || fail 'squashed'
  [[ $(stat -c %u:%g $M/alpha/moves "$base/alpha/moves" | xargs) == '0:0 0:0' ]] || fail 'not squashed'
  rm $M/srv/squashed/made $M/alpha/moves
  umount $M/alpha $M/srv/ro $M/srv/squashed 2>/dev/null || true; umount $M || fail "umount: $(grep $M /proc/mounts)"
  # Mounts of one export, and of a directory in it.
  mount -t nfs -o vers=$vers,port=2049 $S:/srv/ro $M; [[ $(cat $M/notes) == 'in ro' ]] || fail 'one export'; umount $M
  mount -t nfs -o vers=$vers,port=2049 $S:/alpha/sub $M; [[ $(cat $M/below) == below ]] || fail 'a directory'; umount $M
  echo "tree vers=$vers: ok"
done

options=vers=3,proto=tcp,port=2049,mountport=2049,mountproto=tcp,nolock
for pair in /alpha:notes:'in alpha' /srv/ro:notes:'in ro' /alpha/sub:below:below "$base/alpha/sub:below:below"; do
  IFS=: read -r path file content <<<"$pair"
  mount -t nfs -o $options "$S:$path" $M || fail "vers=3 $path"
  [[ $(cat "$M/$file") == "$content" ]] || fail "vers=3 $path"
  [[ $path == /srv/ro ]] && denied 'Read-only file system' touch $M/new
  umount $M
done
denied 'access denied' mount -t nfs -o $options $S:/shut $M
denied 'denied' mount -t nfs -o vers=4.2,port=2049 $S:/shut $M
echo 'each vers=3: ok'

# A reload while files are open.
mkdir /run/mnt3; mount -t nfs -o $options $S:/srv/squashed /run/mnt3
mount_weir 4.2 actimeo=1
exec 7>$M/alpha/open 8<$M/srv/ro/notes; echo before >&7
exec 9>$M/srv/squashed/open
[[ $(ls $M | xargs) == 'alpha srv' ]] || fail 'before the reload'
cp "$base/other.toml" "$base/weir.toml"; touch "$base/reload"
for try in $(seq 1 240); do [[ -d $M/new ]] && break; sleep 0.5; done
[[ $(ls $M | xargs) == 'alpha new srv' && $(cat $M/new/notes) == 'in new' ]] || fail "after the reload: $(ls $M | xargs)"
for try in $(seq 1 240); do [[ $(ls $M/srv | xargs) == ro ]] && break; sleep 0.5; done
[[ $(ls $M/srv | xargs) == ro ]] || fail "after the reload: $(ls $M/srv | xargs)"
# Files of remaining exports stay usable.
echo after >&7; exec 7>&-; [[ $(xargs <"$base/alpha/open") == 'before after' ]] || fail 'a file open for writing'
[[ $(cat <&8) == 'in ro' ]] || fail 'a file open for reading'; exec 8<&-
# Files of the removed export are stale, by every path.
denied 'Stale file handle' ls /run/mnt3
denied 'Stale file handle' touch /run/mnt3/new
(echo gone >&9) 2>/dev/null || true
exec 9>&- || true
umount -l /run/mnt3
mount -t nfs -o $options $S:/new /run/mnt3; [[ $(cat /run/mnt3/notes) == 'in new' ]] || fail 'the new one by itself'
umount /run/mnt3
rm -f "$base/squashed/open"
umount -l $M
echo 'exports: ok'
