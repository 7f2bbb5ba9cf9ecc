# scenarios.sh EXPORT VERS LOCAL WEIR SOURCE ENTRIES SECONDS [NAME...]: runs the functions in scenarios/*.sh, or those named.
# EXPORT is the exported directory, accessed directly; LOCAL a disk with a file system of the same type; WEIR the
# binary; SOURCE a tar file of a program to build, or empty; ENTRIES and SECONDS scale some scenarios.
#
# A scenario runs in an empty directory and prints what it sees, once on LOCAL and once through a mount; the two outputs
# must be equal. It has $vers (`local` on LOCAL) and three paths of its directory: $here, $there (through a mount
# by a second client, without an attribute cache) and $direct (on the server's machine). It asserts with `fail` what a
# local file system cannot show. `inapplicable WHY` ends a scenario that does not apply, and `skip WHY` one
# that lacks a program, which CI has to know.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
for family in "$(dirname "${BASH_SOURCE[0]}")"/scenarios/*.sh; do source "$family"; done
export_dir=$1 version=$2 disk=$3 weir=$4 source_tar=$5 entries=$6 stress_seconds=$7
shift 7
names=("$@")
((${#names[@]})) || mapfile -t names <<<"$(grep -ohP '^[a-z_0-9]+(?=\(\) \{ # scenario)' "$(dirname "${BASH_SOURCE[0]}")"/scenarios/*.sh)"

inapplicable() { echo "NONE $*" >&9; exit 77; }
skip() { echo "SKIP $*" >&9; exit 77; }
# since VERS: whether this version has the features of VERS; a local file system has all.
since() { [[ $vers == local || ! $vers < $1 ]]; }
# try COMMAND...: prints its output or its error.
try() {
  local output
  if output=$("$@" 2>&1); then echo "ok: $output"; else echo "failed: ${output##*: }"; fi
}
# as UID COMMAND...: runs as another user, in the group with the same number.
as() { setpriv --reuid "$1" --regid "$1" --clear-groups -- "${@:2}"; }

# transcript NAME: runs a scenario in the directory of these variables.
transcript() {
  rm -rf "$here"; mkdir -m 755 "$here"
  (set -euo pipefail; cd "$here"; "$1") 9>/run/skipped
}

M2=/run/mnt2
mkdir -p $M2 /run/local
mount "$disk" /run/local
mount_weir "$version"
# Another mount of the same version would be the same client to the server, with the same delegations.
case $version in 4.1) other=4.2 ;; 4.*) other=4.1 ;; *) other=$version ;; esac
mount_weir "$other" nosharecache,actimeo=0 $M2
for name in "${names[@]}"; do
  start=$(date +%s%N)
  vers=local here=/run/local/$name there=/run/local/$name direct=/run/local/$name
  local_status=0; transcript "$name" >/run/expected 2>&1 || local_status=$?
  cd /; rm -rf "$here"
  vers=$version here=$M/$name there=$M2/$name direct=$export_dir/$name
  status=0; transcript "$name" >/run/seen 2>&1 || status=$?
  cd /
  if [[ $status == 77 ]]; then
    read -r kind why </run/skipped; echo "$kind $name: $why"
  elif [[ $status == 0 && ( $local_status == 77 || $local_status == 0 ) ]] && { [[ $local_status == 77 ]] || cmp -s /run/expected /run/seen; }; then
    echo "PASS $name $((($(date +%s%N) - start) / 1000000)) ms"
  else
    echo "FAIL $name: status $status here, $local_status on a local file system; expected, then seen:"
    diff /run/expected /run/seen | head -40 || true
    [[ $status == 0 ]] || tail -n 5 /run/seen
  fi
  rm -rf "$here" || echo "FAIL $name: cannot be removed"
done
umount $M2 $M /run/local
echo 'scenarios: done'
