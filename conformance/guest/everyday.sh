# everyday.sh DIR BESIDE: everyday programs work in DIR; copies what they made to BESIDE.
set -euo pipefail
dir=$1 beside=$2
export HOME=$dir GIT_CONFIG_NOSYSTEM=1
cd "$dir"

# git: many small files, renames, locks, mapped packs.
git init -q -b main repo; cd repo
git config user.name weir; git config user.email weir@localhost; git config gc.auto 0
for i in $(seq 200); do mkdir -p "d$((i % 7))"; printf 'line %s\n' $(seq "$i") >"d$((i % 7))/f$i"; done
git add .; git commit -qm one
for i in $(seq 0 3 199); do echo more >>"d$(((i + 1) % 7))/f$((i + 1))"; done
git mv d0 moved; git commit -qam two; git repack -qad; git fsck --strict --no-progress
git clone -q . ../clone; git -C ../clone log --oneline | grep -c . | grep -qx 2
cd ..

# Links, modes, times, names of 255 bytes, a sparse archive.
mkdir tree; long=$(printf 'n%.0s' {1..255}); echo long >"tree/$long"; ln tree/"$long" tree/hard; ln -s hard tree/soft
truncate -s 64M tree/sparse; printf end | dd of=tree/sparse bs=1 seek=40000000 conv=notrunc status=none
touch -d '2001-02-03 04:05:06.789' tree/hard; chmod 751 tree
tar -cSf tree.tar tree; [[ $(stat -c %s tree.tar) -lt 1000000 ]]
mkdir out; tar -xSf tree.tar -C out; cmp tree/sparse out/tree/sparse
[[ $(stat -c '%Y %h' out/tree/hard) == "$(stat -c '%Y %h' tree/hard)" && $(stat -c %a out/tree) == 751 ]]
[[ $(stat -c %b out/tree/sparse) -lt 1000 ]]
cp --sparse=always tree/sparse copy; cmp tree/sparse copy

# A build: make looks at times; programs run from here; several writers append to one file.
printf 'all: a.out\n%%.out: %%.in\n\tcp $< $@\n' >Makefile; echo 1 >a.in; make -s; make -s all | grep -q 'Nothing\|up to date' || true
touch -d '1 hour' a.in; make -s
cp /bin/sleep ./run-me; ./run-me 0
for i in 1 2 3 4; do (for j in $(seq 50); do echo "$i $j" >>appended; done) & done; wait
[[ $(wc -l <appended) == 200 && $(sort -u appended | wc -l) == 200 ]]
[[ $(find . -type f | wc -l) -gt 400 ]]
rm -rf clone out

mkdir -p "$beside"; cp -a "$dir/." "$beside/"
