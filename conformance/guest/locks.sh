# locks.sh PART DIR: locks of the kernel's client, v3 (NLM, with lockd and statd) at $M and v4.2 at $M2,
# on the same files. PART: rules, restart. DIR is the exported directory, seen directly; the server's
# loop kills it when DIR.kill appears, and says so in DIR.killed.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
part=$1 dir=$2
M2=/run/mnt2
mount -t tmpfs tmpfs /var/lib/nfs
mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak /run/rpcbind $M2
chown -R statd /var/lib/nfs 2>/dev/null || true
rpcbind -w
rpc.statd --no-notify
mount -t nfs -o vers=3,proto=tcp,port=2049,mountport=2049,mountproto=tcp $S:/ $M
mount -t nfs -o vers=4.2,proto=tcp,port=2049 $S:/ $M2
cat >/run/locks.py <<'P'
"""locks.py COMMAND FILE KIND START LENGTH [READY STOP]: fcntl locks; KIND is r or w, length 0 is to the end."""
import fcntl, os, struct, sys, time
command, path, kind, start, length = sys.argv[1:6]
start, length = int(start), int(length)
fd = os.open(path, os.O_RDWR)
flag = fcntl.LOCK_SH if kind == "r" else fcntl.LOCK_EX
if command == "try":
    try:
        fcntl.lockf(fd, flag | fcntl.LOCK_NB, length, start)
        print("free")
    except OSError as error:
        print("busy" if error.errno in (11, 13) else error)
elif command == "test":
    asked = struct.pack("hhqqi4x", fcntl.F_RDLCK if kind == "r" else fcntl.F_WRLCK, 0, start, length, 0)
    kind, _, start, length, _ = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    print("free" if kind == fcntl.F_UNLCK else "%s %d %d" % ("w" if kind == fcntl.F_WRLCK else "r", start, length))
elif command == "hold":
    ready, stop = sys.argv[6:8]
    fcntl.lockf(fd, flag, length, start)
    open(ready, "w").close()
    while not os.path.exists(stop):
        time.sleep(0.05)
    fcntl.lockf(fd, fcntl.LOCK_UN, length, start)
P
locks() { python3 /run/locks.py "$@"; }
# hold NAME FILE KIND START LENGTH: takes a lock, in the background, until `release NAME`.
hold() { local name=$1; shift; rm -f /run/$name.{ready,stop}; locks hold "$@" /run/$name.ready /run/$name.stop & }
holds() { [[ -e /run/$1.ready ]]; }
await() { local i; for i in $(seq $(($2 * 10))); do holds "$1" && return; sleep 0.1; done; fail "$1 did not get its lock in $2 s"; }
release() { touch /run/$1.stop; }
expect() { local want=$1; shift; local got; got=$(locks "$@"); [[ $got == "$want" ]] || fail "$*: $got, not $want"; }
# settle: waits until the locks released above are given up.
settle() { wait; }

rules() {
  local a b
  for pair in "$M $M2" "$M2 $M"; do
    read -r a b <<<"$pair"
    hold one "$a/f" w 100 50; await one 20
    expect busy try "$b/f" w 120 1
    expect busy try "$b/f" r 149 100
    expect free try "$b/f" w 150 0
    expect free try "$b/f" w 0 100
    expect "w 100 50" test "$b/f" r 0 0
    # Whoever waits gets it when it is freed: over v3 by the server's call, long before the client
    # would ask again (30 s); over v4.2 when the client asks again.
    hold two "$b/f" w 0 0; sleep 3
    holds two && fail "a lock over $a was taken over $b, too"
    begun=$SECONDS; release one; await two 20
    [[ $b == "$M" && $((SECONDS - begun)) -gt 8 ]] && fail "granted after $((SECONDS - begun)) s"
    expect busy try "$a/f" r 5 5
    release two; settle
    # Readers share.
    hold one "$a/f" r 0 0; await one 20
    expect free try "$b/f" r 7 7
    expect busy try "$b/f" w 7 7
    release one; settle
    # flock(2) is a lock of the whole file.
    flock "$a/f" sleep 4 & sleep 2
    if flock -n "$b/f" true; then fail "flock over $a does not hold over $b"; fi
    expect busy try "$b/f" w 0 1
    settle
    flock -n "$b/f" true || fail "flock over $a stays"
  done
  echo 'locks rules: ok'
}

# Both clients hold locks while the server is killed; both have them again afterwards.
restart() {
  hold three "$M/f" w 0 10; hold four "$M2/f" w 10 10; hold five "$M2/g" w 0 0
  await three 20; await four 20; await five 20
  touch "$dir.kill"
  for _ in $(seq 200); do [[ -s $dir.killed ]] && break; sleep 0.1; done
  [[ -s $dir.killed ]] || fail 'the server was not killed'
  # New locks wait for the end of grace, whether they are in the way or not.
  begun=$SECONDS
  expect busy try "$M/f" w 10 1
  expect busy try "$M2/f" w 9 1
  expect busy try "$M/g" r 0 0
  expect free try "$M2/f" w 20 1
  echo "new locks after $((SECONDS - begun)) s"
  for name in three four five; do holds $name || fail "$name lost its lock"; done
  dmesg | grep -i 'failed to reclaim' && fail 'a lock was not reclaimed'
  release three; release four; release five; settle
  expect free try "$M2/f" w 0 10
  expect free try "$M/f" w 10 10
  echo 'locks restart: ok'
}

echo hello >$M/f; echo hello >$M/g
$part
umount $M $M2
