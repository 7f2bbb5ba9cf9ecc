# delegated.sh DIR TIMES: Linux's client of 4.2 writes files under write delegations that stand for its opens (RFC 9754),
# other clients (4.1 and 3) see what it wrote, or recall them, and the server is killed meanwhile. DIR is the exported
# directory, accessed directly. TIMES is on if the server delegates times. Mounts of two versions are two clients.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
dir=$1 times=$2 B=/run/mnt2 N=/run/mnt3
mkdir -p $B $N
mount_weir 4.2
mount_weir 4.1 noac $B
mount_weir 3 noac $N

opens() { echo $(($(counted OPEN 1) + $(counted OPEN_NOATTR 1))); }
# calls: number of calls about opens, attributes and times sent to the server.
calls() { echo "opens $(opens) closes $(counted CLOSE 1) getattrs $(counted GETATTR 1) setattrs $(counted SETATTR 1) returns $(counted DELEGRETURN 1)"; }
# since BEFORE: the difference to an earlier output of `calls`.
since() { echo "$1 $(calls)" | awk '{ for (i = 1; i <= NF / 2; i += 2) printf "%s %d ", $i, $(i + 1 + NF / 2) - $(i + 1) }'; }
# delegate FILE: opens a file to write until the server delegates it, which it does at the second time.
delegate() { for _ in 1 2; do printf 'a line\n' >>"$1"; done; }
kill_server() {
  echo KILL >"$dir.signal"; mv "$dir.signal" "$dir.kill"
  while [[ -e $dir.kill ]]; do sleep 0.1; done
}

before=$(calls)
delegate "$M/f"
echo "FIRST $(since "$before")"
before=$(calls)
for _ in 1 2 3 4 5 6 7 8; do printf 'a line\n' >>"$M/f"; done
echo "REST $(since "$before")"
[[ $(wc -l <"$M/f") == 10 ]] || fail "lines: $(wc -l <"$M/f")"

# Times of now.
sleep 0.1
before=$(calls)
perl -e 'utime undef, undef, shift or die "utime: $!"' "$M/f"
echo "TOUCH $(since "$before")"

# Other clients are told of what is not written back yet, and nothing is recalled.
exec 5>>"$M/f"
printf 'not written back\n' >&5
returned=$(counted DELEGRETURN 1)
for mnt in $B $N; do
  [[ $(stat -c %s "$mnt/f") == 87 ]] || fail "$mnt: size $(stat -c %s "$mnt/f")"
  if [[ $times == on ]]; then
    [[ $(stat -c %.9Y "$mnt/f") == $(stat -c %.9Y "$M/f") ]] || fail "$mnt: time of change $(stat -c %.9Y "$mnt/f"), $(stat -c %.9Y "$M/f") at the writer"
  fi
done
[[ $(counted DELEGRETURN 1) == "$returned" ]] || fail 'a look at attributes recalled the delegation'

# Another reader gets the data, and the writer goes on under an open. Times stay.
written=$(stat -c %.9Y "$M/f")
sleep 1.1
[[ $(tail -1 "$B/f") == 'not written back' ]] || fail "the second client reads $(tail -1 "$B/f")"
[[ $(counted DELEGRETURN 1) == $((returned + 1)) ]] || fail 'the delegation was not recalled by a reader'
if [[ $times == on ]]; then
  for mnt in $M $B $N; do [[ $(stat -c %.9Y $mnt/f) == "$written" ]] || fail "$mnt: time of change $(stat -c %.9Y $mnt/f), was $written"; done
  [[ $(stat -c %.9Y "$dir/f") == "$written" ]] || fail "the file's time of change is $(stat -c %.9Y "$dir/f"), was $written"
fi
printf 'later\n' >&5
exec 5>&-
[[ $(tail -1 "$B/f") == later && $(tail -1 "$N/f") == later ]] || fail 'what the writer wrote after the recall is not seen'

# Conflicts by NFSv3, while the only open is a delegation.
delegate "$M/g"
exec 5>>"$M/g"
printf 'first\n' >&5
printf 'by version 3\n' >>"$N/g"
exec 5>&-
printf 'second\n' >>"$M/g"
for text in 'a line' first 'by version 3' second; do grep -q "$text" "$B/g" || fail "no line '$text'"; done
rm "$N/g"
if cat "$M/g" 2>/dev/null; then fail 'a removal by version 3 is not seen'; fi

# A lock that the client holds under a delegation keeps others out after its recall.
delegate "$M/l"
exec 6>>"$M/l"
flock -n 6 || fail 'no lock'
exec 7>>"$B/l"
if flock -n 7; then fail 'two clients have the lock'; fi
exec 6>&-
flock -w 30 7 || fail 'the lock is not free'
exec 7>&-

# Times of the past, and modes.
if [[ $times == off ]]; then
  delegate "$M/t"
  touch -d 2001-02-03 "$M/t"
  [[ $(stat -c %y "$M/t") == 2001-02-03* && $(stat -c %y "$B/t") == 2001-02-03* ]] || fail "touch: $(stat -c %y "$M/t"), $(stat -c %y "$B/t")"
  cat "$B/t" >/dev/null
  [[ $(stat -c %y "$dir/t") == 2001-02-03* ]] || fail "touch: $(stat -c %y "$dir/t")"
  for _ in 1 2 3; do cp -p "$M/t" "$M/copy"; done
  [[ $(stat -c %y "$B/copy") == 2001-02-03* ]] || fail "cp -p: $(stat -c %y "$B/copy")"
fi

# The server is killed while the delegation is the client's only state of the file.
delegate "$M/k"
exec 5>>"$M/k"
printf 'before\n' >&5
written=$(stat -c %.9Y "$M/k")
kill_server
printf 'after\n' >&5
sync "$M/k"
[[ $(tail -1 "$dir/k") == after ]] || fail "after the restart the file ends with $(tail -1 "$dir/k")"
[[ $(tail -2 "$B/k" | tr '\n' ' ') == 'before after ' ]] || fail "the second client reads $(cat "$B/k")"
printf 'last\n' >&5
exec 5>&-
[[ $(tail -1 "$N/k") == last ]] || fail 'version 3 does not see the end'
cmp "$M/k" "$dir/k" || fail 'the file differs'
umount $N; umount $B; umount $M || fail umount
echo "delegated times=$times: ok"
