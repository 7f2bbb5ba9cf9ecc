# attributes.sh VERS EXPORT: access control lists, extended attributes and umasks on a mount. The script prints getfacl's
# output for directory `v$VERS` between marks; the test compares it with getfacl's output on the exported files.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
vers=$1 export=$2
# has FILE PATTERN: a line of the file's ACL matches.
has() { local list; list=$(nfs4_getfacl "$1"); grep -q -- "$2" <<<"$list" || fail "$1 has no $2: $list"; }

mount_weir "$vers"
mkdir "$M/v$vers"; cd "$M/v$vers"

if [[ $vers == 3 ]]; then
  # POSIX ACLs over NFSv3, unmapped.
  echo hello >f; setfacl -m u:1000:rwx,g:100:r-x,m::rw- f
  grep -q '^user:1000:rwx' <<<"$(getfacl -cn f)" || fail "f: $(getfacl -cn f)"
  touch g; setfacl -m u:1000:rw g; chmod 640 g
  grep -q '^mask::r--' <<<"$(getfacl -cn g)" || fail "g: $(getfacl -cn g)"
  touch h; setfacl -m g:100:rw h; setfacl -b h; [[ $(getfacl -c h | wc -l) == 4 ]] || fail 'setfacl -b leaves something'
  mkdir d; setfacl -d -m u:1000:rwx,g:100:r-x d
  (umask 077; touch d/heir; mkdir d/sub; touch d/sub/heir)
  mkdir e; setfacl -d -m u:1000:rwx e; setfacl -k e; (umask 027; touch e/plain)
  if setfacl -d -m u:1000:rwx f 2>/dev/null; then fail 'a file has a default list'; fi
  ln -s f link
  # Existing ACLs show.
  (cd "$M/native"; getfacl -nR .) >/run/native
else
  # NFSv4 ACLs, mapped.
  touch f; chmod 640 f
  [[ $(nfs4_getfacl f | tr '\n' ' ') == *'A::OWNER@:rwatTcCy A::GROUP@:rtcy A::EVERYONE@:tcy'* ]] || fail "$(nfs4_getfacl f)"
  nfs4_setfacl -a A::1000:RWX f; nfs4_setfacl -a A:g:100:R f
  has f '^A::1000:rwaxtcy'
  has f '^A:g:100:rtcy'
  [[ $(stat -c %a f) == 670 ]] || fail "the mode is $(stat -c %a f)"
  touch g; nfs4_setfacl -a A::1000:RWX g; chmod 640 g
  has g '^A::1000:rtcy'
  mkdir d; chmod 755 d
  nfs4_setfacl -a A:fdi:1000:RWX d; nfs4_setfacl -a A:fdi:OWNER@:RWX d; nfs4_setfacl -a A:fdi:GROUP@:RX d
  (umask 077; touch d/heir; mkdir d/sub; touch d/sub/heir)
  has d/heir '^A::1000:'
  # The server refuses what POSIX cannot express, and changes nothing.
  nfs4_getfacl f >/run/before
  if nfs4_setfacl -a U:S:EVERYONE@:r f 2>/dev/null; then fail 'an audit entry is accepted'; fi
  if nfs4_setfacl -a A:n:1000:r d 2>/dev/null; then fail 'a flag that POSIX lacks is accepted'; fi
  if nfs4_setfacl -a D::EVERYONE@:t f 2>/dev/null; then fail 'an ACE that denies reading attributes is accepted'; fi
  nfs4_getfacl f | cmp - /run/before || fail 'a refused change took effect'
  # The umask applies except where an ACL is inherited.
  (cd "$M/native"; umask 027; echo x >with/made; mkdir with/sub; echo x >without/made; mkdir without/sub)
fi

if [[ $vers == 4.2 ]]; then
  touch x; setfattr -n user.a -v one x; setfattr -n user.b -v 0x000102ff x
  [[ $(getfattr --only-values -n user.a x) == one ]] || fail getfattr
  [[ $(getfattr -d x | grep -c '^user\.') == 2 ]] || fail "listed: $(getfattr -d x)"
  head -c 30000 /dev/zero | tr '\0' z >/run/long
  if setfattr -n user.a --value="$(head -c 3000 /run/long)" x; then [[ $(getfattr --only-values -n user.a x | wc -c) == 3000 ]] || fail 'a long value'; fi
  setfattr -x user.a x; if getfattr -n user.a x 2>/dev/null; then fail 'a removed attribute is there'; fi
  if setfattr -n trusted.a -v 1 x 2>/dev/null; then fail 'another name space is reached'; fi
fi

echo "BEGIN v$vers"; [[ $vers != 3 ]] || getfacl -nR .; echo "END v$vers"
echo "BEGIN native"; [[ $vers != 3 ]] || cat /run/native; echo "END native"
cd /; umount $M
echo "attributes vers=$vers: ok"
