# locks.sh PART DIR [VERS OTHER SECONDS]: locks of the kernel's client, v3 (NLM, with lockd and statd) at $M and v4.2
# at $M2, or the given versions, on the same files. PART: rules, restart, waits, stress. DIR is the exported directory, accessed
# directly; the server's loop kills the server when DIR.kill appears, and then creates DIR.killed.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
part=$1 dir=$2 vers=${3-3} other=${4-4.2} seconds=${5-5}
M2=/run/mnt2
mount -t tmpfs tmpfs /var/lib/nfs
mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak /run/rpcbind $M2
chown -R statd /var/lib/nfs 2>/dev/null || true
rpcbind -w
rpc.statd --no-notify
mount_locking() { mount_started "vers=$1,proto=tcp,port=2049$([[ $1 != 3 ]] || echo ,mountport=2049,mountproto=tcp)" $S:/ "$2"; }
mount_locking "$vers" $M
mount_locking "$other" $M2
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
elif command == "count":
    # Increments the number at START for LENGTH seconds under a lock of KIND, and prints how often.
    def lock(how):
        if kind == "flock":
            fcntl.flock(fd, how)
        elif kind == "posix":
            fcntl.lockf(fd, how, 16, start)
        else:
            kinds = {fcntl.LOCK_EX: fcntl.F_WRLCK, fcntl.LOCK_UN: fcntl.F_UNLCK}
            fcntl.fcntl(fd, 38, struct.pack("hhqqi4x", kinds[how], 0, start, 16, 0))  # F_OFD_SETLKW
    end, added = time.time() + length, 0
    while time.time() < end:
        lock(fcntl.LOCK_EX)
        number = int(os.pread(fd, 16, start) or b"0")
        os.pwrite(fd, b"%016d" % (number + 1), start)
        lock(fcntl.LOCK_UN)
        added += 1
    print(added)
elif command == "cross":
    # cross FILE KIND START LENGTH OTHER-FILE OTHER-START READY GO: holds one and then waits for the other.
    other, start2, ready, go = sys.argv[6:10]
    fcntl.lockf(fd, flag, length, start)
    fd2 = fd if other == path else os.open(other, os.O_RDWR)
    open(ready, "w").close()
    while not os.path.exists(go):
        time.sleep(0.05)
    try:
        fcntl.lockf(fd2, flag, length, int(start2))
        print("granted")
    except OSError as error:
        print("deadlock" if error.errno == 35 else error)
P
locks() { python3 /run/locks.py "$@"; }
# hold NAME FILE KIND START LENGTH: holds a lock in the background until `release NAME`.
hold() { local name=$1; shift; rm -f /run/$name.{ready,stop}; locks hold "$@" /run/$name.ready /run/$name.stop & }
holds() { [[ -e /run/$1.ready ]]; }
await() { local i; for i in $(seq $(($2 * 10))); do holds "$1" && return; sleep 0.1; done; fail "$1 did not get its lock in $2 s"; }
release() { touch /run/$1.stop; }
expect() { local want=$1; shift; local got; got=$(locks "$@"); [[ $got == "$want" ]] || fail "$*: $got, not $want"; }
# settle: waits until the released locks are unlocked.
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
    # A waiter gets the lock when it is released: over v3 by the server's call, long before the client
    # would retry (30 s); over v4.2 by the server's notification.
    hold two "$b/f" w 0 0; sleep 3
    holds two && fail "a lock over $a was taken over $b, too"
    begun=$SECONDS; release one; await two 22
    [[ $((SECONDS - begun)) -gt 22 ]] && fail "granted after $((SECONDS - begun)) s"
    expect busy try "$a/f" r 5 5
    release two; settle
    # Shared locks do not conflict.
    hold one "$a/f" r 0 0; await one 20
    expect free try "$b/f" r 7 7
    expect busy try "$b/f" w 7 7
    release one; settle
    # flock(2) locks the whole file.
    flock "$a/f" sleep 4 & sleep 2
    if flock -n "$b/f" true; then fail "flock over $a does not hold over $b"; fi
    expect busy try "$b/f" w 0 1
    settle
    flock -n "$b/f" true || fail "flock over $a stays"
  done
  echo 'locks rules: ok'
}

# asked MOUNT: number of LOCK requests that a mount has sent.
asked() { awk -v m="$1" '$1 == "device" {here = $5 == m} here && $1 == "LOCK:" {print $2}' /proc/self/mountstats; }

# deadlock NAME FILE FILE2 START2: of two processes that wait for each other, one gets EDEADLK and the other its lock.
deadlock() {
  rm -f /run/{left,right}.{ready,go,out}
  locks cross "$2" w 0 1 "$3" "$4" /run/left.ready /run/left.go >/run/left.out &
  locks cross "$3" w "$4" 1 "$2" 0 /run/right.ready /run/right.go >/run/right.out &
  await left 20; await right 20
  touch /run/left.go; sleep 1; touch /run/right.go
  settle
  [[ $(sort /run/{left,right}.out | xargs) == 'deadlock granted' ]] || fail "$1: $(cat /run/{left,right}.out)"
}

# The server notifies waiting clients of v4.1 and v4.2 when the lock is free; without that, Linux's client polls every 30 s.
waits() {
  local M3=/run/mnt3 before took
  mkdir -p $M3
  mount -t nfs -o vers=4.1,proto=tcp,port=2049 $S:/ $M3
  for pair in "$M2 $M3" "$M3 $M2"; do
    read -r a b <<<"$pair"
    hold one "$a/f" w 0 10; await one 20
    before=$(asked "$b")
    hold two "$b/f" w 5 10; sleep 4
    holds two && fail "a lock over $a was taken over $b, too"
    begun=$(date +%s%N); release one; await two 22
    (($(date +%s%N) - begun < 22000000000)) || fail "fcntl over $b woken late: it polls after 26 s"
    echo "fcntl over $b woken after $((($(date +%s%N) - begun) / 1000000)) ms, asked $(($(asked "$b") - before)) times"
    [[ $(($(asked "$b") - before)) -le 3 ]] || fail "asked $(($(asked "$b") - before)) times"
    release two; settle
    rm -f /run/flock.ready /run/freed
    flock "$a/f" sh -c 'touch /run/flock.ready; sleep 4; date +%s >/run/freed' & await flock 60
    flock "$b/f" true
    [[ -s /run/freed ]] || fail "a lock over $a was taken over $b, too"
    took=$(($(date +%s) - $(</run/freed)))
    [[ $took -le 22 ]] || fail "flock after $took s"
    settle
  done
  umount $M3
  deadlock 'v4.2, one file' $M2/f $M2/f 5
  deadlock 'v3, two files' $M/f $M/g 0
  echo 'locks waits: ok'
}

# Both clients hold locks while the server is killed, and have them again afterwards.
restart() {
  hold three "$M/f" w 0 10; hold four "$M2/f" w 10 10; hold five "$M2/g" w 0 0
  await three 20; await four 20; await five 20
  touch "$dir.kill"
  for _ in $(seq 200); do [[ -s $dir.killed ]] && break; sleep 0.1; done
  [[ -s $dir.killed ]] || fail 'the server was not killed'
  # New locks wait for the end of the grace period, conflicting or not.
  df $M2 >/dev/null  # asks the server: this client reclaims at once
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

# Processes on both mounts increment the same numbers under locks of each kind; no increment is lost. Meanwhile stress-ng
# locks its own files on each mount.
stress() {
  local kind at i mount pids=()
  printf '%016d%016d' 0 0 >$M/flock; cp $M/flock $M/posix; cp $M/flock $M/ofd; sync $M/*
  for mount in $M $M2; do
    if command -v stress-ng >/dev/null; then
      mkdir $mount/stress-${mount##*/}
      stress-ng --temp-path $mount/stress-${mount##*/} --timeout "$seconds" --verify --oom-avoid --lockf 1 --flock 1 --lockofd 1 >/run/stress-${mount##*/}.log 2>&1 & pids+=($!)
    fi
    for kind in flock posix ofd; do
      for at in 0 16; do
        # flock(2) locks the whole file.
        [[ $kind == flock && $at == 16 ]] || { locks count "$mount/$kind" $kind $at "$seconds" >/run/count-${mount##*/}-$kind-$at & pids+=($!); }
      done
    done
  done
  for i in "${pids[@]}"; do wait "$i" || fail "$(tail -n 5 /run/stress-*.log /run/count-*)"; done
  for kind in flock posix ofd; do
    for at in 0 16; do
      [[ $kind == flock && $at == 16 ]] && continue
      local here there=0 now
      read -r here </run/count-mnt-$kind-$at; read -r there </run/count-mnt2-$kind-$at
      now=$(dd if="$dir/$kind" bs=16 skip=$((at / 16)) count=1 status=none)
      ((10#$now == here + there)) || fail "$kind at $at: $here over $vers and $there over $other, but it counts $now"
      ((here > 0 && there > 0)) || fail "$kind at $at: $here over $vers, $there over $other"
      echo "$kind at $at: $here over $vers, $there over $other"
    done
  done
  for mount in $M $M2; do rmdir $mount/stress-${mount##*/} 2>/dev/null || [[ ! -e $mount/stress-${mount##*/} ]] || fail "left over: $(ls -A $mount/stress-${mount##*/})"; done
  expect free try "$M/posix" w 0 0; expect free try "$M2/ofd" w 0 0
  echo 'locks stress: ok'
}

echo hello >$M/f; echo hello >$M/g
$part
umount $M $M2
