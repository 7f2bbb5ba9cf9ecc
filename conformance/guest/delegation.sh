# delegation.sh VERS DIR: the server delegates files that a client opens again, and recalls them when NFSv3 or a program
# of the server's machine changes them. DIR is the exported directory, accessed directly.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
vers=$1 dir=$2 N=/run/mnt3
mkdir -p $N
mount_started vers=3,proto=tcp,port=2049,mountport=2049,mountproto=tcp,nolock,noac $S:/ $N
mount_weir "$vers"
printf 'first' >"$M/read"

# opens: number of opens sent to the server, by name and by handle.
opens() { echo $(($(counted OPEN 1) + $(counted OPEN_NOATTR 1))); }

# The second open gets the delegation; the client serves later ones itself.
for i in 1 2; do [[ $(cat "$M/read") == first ]] || fail "read $i"; done
before=$(opens)
for i in 1 2 3 4 5 6 7 8 9 10; do [[ $(cat "$M/read") == first ]] || fail "reread $i"; done
echo "OPENS $vers $(($(opens) - before))"

printf 'other' >"$N/read"
[[ $(cat "$M/read") == other ]] || fail 'a write by NFSv3 is not seen'
[[ $(counted DELEGRETURN 1) -ge 1 ]] || fail 'nothing was recalled by NFSv3'
rm "$N/read"
if cat "$M/read" 2>/dev/null; then fail 'a removal by NFSv3 is not seen'; fi

# Changed by a program of the server's machine: noticed within seconds.
printf 'first' >"$M/local"
for i in 1 2 3; do [[ $(cat "$M/local") == first ]] || fail "read $i"; done
sync; sleep 1; printf 'other' >"$dir/local"; sync
for i in $(seq 40); do sleep 0.5; [[ $(cat "$M/local") == other ]] && break; done
[[ $(cat "$M/local") == other ]] || fail 'a local change is not seen'

# Two writers that open the file repeatedly; each reads what the other wrote.
for i in 1 2 3 4 5 6 7 8; do echo "line $i" >>"$M/write"; done
[[ $(tail -1 "$N/write") == 'line 8' && $(wc -l <"$N/write") == 8 ]] || fail "NFSv3 reads $(cat "$N/write")"
echo 'line 9' >>"$N/write"
echo 'line 10' >>"$M/write"
seq -f 'line %g' 1 10 | cmp - "$M/write" || fail 'lines of two writers'
cmp "$N/write" "$M/write" || fail 'the two mounts differ'
umount $N; umount $M || fail umount
echo "delegation vers=$vers: ok"
