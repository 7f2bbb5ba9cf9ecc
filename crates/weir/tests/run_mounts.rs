//! `weir run` and mounts: those below the directories that it serves, those that other programs unmount, and those of
//! disks that fail.

mod common;

use common::{scratch, text, weir, within};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

/// Runs a script in a mount namespace of its own, in which all mounts are shared and `$0` is the binary. `None` where
/// that is not possible, and the test is skipped.
#[track_caller]
fn in_namespace(dir: &Path, script: &str) -> Option<Output> {
    if !weir_skip::is_root("only root mounts a file system to run a command in") {
        return None;
    }
    let possible = weir(["run", "--engine", "mount", "true"]).output().unwrap();
    if possible.status.code() == Some(125) {
        weir_skip::skip(text(&possible));
        return None;
    }
    let mut command = Command::new("unshare");
    command.args([
        "-m",
        "--propagation",
        "shared",
        "sh",
        "-ec",
        script,
        env!("CARGO_BIN_EXE_weir"),
    ]);
    let output = command.current_dir(dir).output().unwrap();
    if output.status.code() == Some(77) {
        weir_skip::skip(text(&output));
        return None;
    }
    assert!(output.status.success(), "{}", text(&output));
    Some(output)
}

#[test]
fn file_systems_below_a_path_are_there() {
    let dir = scratch();
    // On `other`, as on the directory itself, there are files of users; a path that is asked for lies on `tmp`.
    let script = "mkdir -p tree/tmp tree/other source/inner; echo own > tree/own; echo other > source/file
        touch tree/single
        mount -t tmpfs none tree/tmp || exit 77
        mkdir tree/tmp/asked tree/tmp/inner; echo tmp > tree/tmp/file; echo asked > tree/tmp/asked/file
        mount -t tmpfs none tree/tmp/inner; echo tmp/inner > tree/tmp/inner/file
        mount -t tmpfs none tree/tmp/asked; echo tmp/asked > tree/tmp/asked/file
        mount --bind source tree/other
        mount -t tmpfs none tree/other/inner; echo other/inner > tree/other/inner/file
        mount --bind source/file tree/single
        for paths in '--path tree' '--path tree/tmp/asked --path tree'; do
            $0 run --engine mount $paths sh -c 'cd tree; cat own tmp/file tmp/inner/file tmp/asked/file \
                other/file other/inner/file single; echo new > tmp/inner/new
                grep -c \"/tree.* fuse\" /proc/self/mounts'
            rm tree/tmp/inner/new
        done
        stat -f -c %T tree/other";
    let Some(output) = in_namespace(dir.path(), script) else { return };
    let said = String::from_utf8(output.stdout).unwrap();
    let read = "own\ntmp\ntmp/inner\ntmp/asked\nother\nother/inner\nother\n";
    let kind = said.lines().last().unwrap().to_owned();
    // Those with files of users are served, and those that are asked for.
    let served = if ["ext2/ext3", "xfs", "btrfs"].contains(&&*kind) { 2 } else { 1 };
    assert_eq!(said, format!("{read}{served}\n{read}{}\n{kind}\n", served + 1));
}

#[test]
fn more_file_systems_below_a_path_than_open_files_are_there() {
    let dir = scratch();
    let script = "for n in $(seq 80); do
            mkdir -p tree/$n; mount -t tmpfs none tree/$n || exit 77; echo $n > tree/$n/file
        done
        ulimit -Sn 64
        $0 run --engine mount --path tree sh -c 'cat tree/*/file | wc -l; ulimit -Sn'";
    let Some(output) = in_namespace(dir.path(), script) else { return };
    assert_eq!(String::from_utf8_lossy(&output.stdout), "80\n64\n", "{}", text(&output));
}

#[test]
fn what_is_unmounted_beside_a_command_is_not_kept_by_it() {
    let dir = scratch();
    // Pipes, open at both ends here: no write to one waits.
    let script = "mkdir stick data; mkfifo up go; mount -t tmpfs none stick || exit 77
        exec 3<> up 4<> go
        { \"$0\" run --engine mount --path data sh -c '
            grep -c \"/stick \" /proc/self/mountinfo > up; read go < go; grep \"/stick \" /proc/self/mountinfo; true' ||
            { echo failed; echo failed > up; }; } &
        read before <&3; umount stick || echo busy; echo >&4; wait $!; echo $before";
    let Some(output) = in_namespace(dir.path(), script) else { return };
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n", "{}", text(&output));
}

/// Has a watched command write to `disk/copy` on a disk that does not take all of it; `prepare` mounts the disk.
#[track_caller]
fn a_watched_write_fails(prepare: &str) {
    let script = format!(
        "{prepare}
        touch disk/copy; head -c 12000000 /dev/urandom > data
        ended=0; \"$0\" run --engine watch --path disk --json cp data disk/copy || ended=$?
        echo $ended"
    );
    within(Duration::from_secs(300), || {
        let dir = scratch();
        let Some(output) = in_namespace(dir.path(), &script) else { return Some(()) };
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let json = said.lines().find(|line| line.starts_with('{')).unwrap_or_default();
        let report: Value = serde_json::from_str(json).unwrap();
        // An open that waits too long to be looked at goes on without that.
        if report["unseen_opens"] != 0 {
            return None;
        }
        assert_eq!(output.stdout, b"1\n", "{said}");
        assert!(said.contains("cannot write out ") && said.contains("/disk/copy: "), "{said}");
        assert_eq!((&report["complete"], &report["evicted_bytes"]), (&false.into(), &0.into()));
        Some(())
    });
}

/// The kernel reports a failed write once, and then its page is clean.
#[test]
fn what_a_disk_does_not_take_fails_a_watched_run_and_stays_in_the_cache() {
    // The disk lies on a file system with less space than it has.
    a_watched_write_fails(
        "mkdir back disk; mount -t tmpfs -o size=4M none back || exit 77
        truncate -s 64M back/image
        mkfs.ext4 -q -F -O ^has_journal -E lazy_itable_init=1,nodiscard back/image || exit 77
        mount -o loop back/image disk || exit 77",
    );
}

/// That is reported to the call that starts the write, and to no later one.
#[test]
fn a_file_for_which_no_blocks_can_be_allocated_fails_a_watched_run() {
    // The bitmap of the free blocks is overwritten.
    a_watched_write_fails(
        "mkdir disk; truncate -s 32M image
        mkfs.ext4 -q -F -b 4096 -O metadata_csum,^flex_bg,^has_journal image || exit 77
        bitmap=$(dumpe2fs image 2>&1 | sed -n 's/.*Block bitmap at \\([0-9]*\\).*/\\1/p' | head -n 1)
        [ -n \"$bitmap\" ] || exit 77
        head -c 4096 /dev/urandom | dd of=image bs=4096 seek=$bitmap conv=notrunc status=none
        mount -o loop,errors=continue image disk || exit 77",
    );
}
