//! `weir serve` under the Linux kernel's NFS client, and `weir cp` from the kernel's NFS server.

use conformance::{Guest, scratch, serve_command, weir};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];

#[test]
fn linux_client_copies_trees_in_and_out() {
    let Some(guest) = Guest::find() else { return };
    let repo = tiny_repository();
    for vers in VERSIONS {
        let dir = scratch();
        let export = dir.path().join("export");
        std::fs::create_dir(&export).unwrap();
        let repo = repo.path().to_str().unwrap();
        let text = guest.run(&serve_command(&export, ""), &[], "tree.sh", &[vers, repo]);
        assert!(text.contains(&format!("tree vers={vers}: ok")), "{text}");
    }
}

/// A git repository with some history; this checkout's own may be shallow or a worktree.
fn tiny_repository() -> tempfile::TempDir {
    let dir = scratch();
    let git = |args: &[&str]| {
        let identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"];
        let ok = Command::new("git").args(identity).args(args).current_dir(dir.path()).status();
        assert!(ok.unwrap().success(), "git {args:?}");
    };
    git(&["init", "-q"]);
    for (i, entry) in
        std::fs::read_dir(conformance::workspace().join("crates/vfs/src")).unwrap().enumerate()
    {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
        git(&["add", "."]);
        git(&["commit", "-q", "-m", &format!("commit {i}")]);
    }
    dir
}

/// A file of `len` bytes in which every other `block` is data, beginning with data if `data_first`.
fn mixed(path: &Path, len: u64, block: u64, data_first: bool) {
    let file = File::create(path).unwrap();
    file.set_len(len).unwrap();
    let mut at = if data_first { 0 } else { block };
    while at < len {
        let bytes: Vec<u8> = (0..block.min(len - at)).map(|i| ((at + i) % 251 + 1) as u8).collect();
        file.write_all_at(&bytes, at).unwrap();
        at += 2 * block;
    }
    file.sync_all().unwrap();
}

fn sparse_files(dir: &Path) {
    const MIB: u64 = 1 << 20;
    mixed(&dir.join("hole"), 256 * MIB, 1 << 40, false);
    mixed(&dir.join("data"), 8 * MIB, 8 * MIB, true);
    for kib in [4, 8, 16, 32] {
        mixed(&dir.join(format!("mixed-{kib}d")), 16 * MIB, kib << 10, true);
        mixed(&dir.join(format!("mixed-{kib}h")), 16 * MIB, kib << 10, false);
    }
    mixed(&dir.join("tail-hole"), 3 * MIB, 2 * MIB, true);
    mixed(&dir.join("odd"), 1_234_567, 12_288, false);
}

#[test]
fn holes_do_not_cross_the_wire_to_the_linux_client() {
    let Some(guest) = Guest::find() else { return };
    let dir = scratch();
    let export = dir.path().join("export");
    std::fs::create_dir(&export).unwrap();
    sparse_files(&export);
    let text =
        guest.run(&serve_command(&export, ""), &[], "sparse.sh", &[export.to_str().unwrap()]);
    let mut seen = 0;
    for line in text.lines().filter_map(|l| l.strip_prefix("RECEIVED 4.2 ")) {
        let words: Vec<&str> = line.split(' ').collect();
        let (size, received): (u64, u64) = (words[1].parse().unwrap(), words[2].parse().unwrap());
        match words[0] {
            "hole" => assert!(received < 64 << 10, "{line}"),
            name if name.starts_with("mixed") => assert!(received * 100 < size * 52, "{line}"),
            _ => assert!(received < size + size / 50, "{line}"),
        }
        seen += 1;
    }
    assert_eq!(seen, 12, "{text}");
    let calls = text.lines().find(|l| l.starts_with("CALLS 4.2")).unwrap();
    let words: Vec<&str> = calls.split(' ').collect();
    assert_eq!(words[3], "0", "plain READ was used: {calls}");
    assert_ne!(words[5], "0", "READ_PLUS was not used: {calls}");
}

#[test]
fn data_acknowledged_by_fsync_survives_sigkill_of_the_server() {
    let Some(guest) = Guest::find() else { return };
    for vers in VERSIONS {
        let dir = scratch();
        let export = dir.path().join("export");
        std::fs::create_dir(&export).unwrap();
        let server = killable(&export, "--lease 10");
        let text = guest.run(&server, &[], "kill9.sh", &[export.to_str().unwrap(), vers]);
        assert!(text.contains(&format!("kill9 vers={vers}: ok")), "{text}");
    }
}

/// A server of `export` that gets the signal named in the file `EXPORT.kill` when that appears, and
/// restarts.
fn killable(export: &Path, options: &str) -> String {
    let serve = serve_command(export, options);
    let serve = serve.strip_prefix("exec ").unwrap();
    let base = export.display();
    format!(
        "touch {base}.killed; while true; do {serve} & pid=$!; trap 'kill -9 $pid' EXIT; \
         while kill -0 $pid 2>/dev/null; do if [[ -e {base}.kill ]]; then \
         signal=$(cat {base}.kill); kill -$signal $pid; wait $pid; \
         echo $signal $? >>{base}.killed; sleep 0.3; rm {base}.kill; fi; sleep 0.02; done; done"
    )
}

#[test]
fn a_partitioned_client_loses_its_locks_and_stops_writing() {
    let Some(guest) = Guest::find() else { return };
    // After 20 s, unlike after 5, the client still has its session when it is told what it lost.
    let runs =
        [("4.0", "4.2", "5"), ("4.1", "4.0", "5"), ("4.2", "4.1", "5"), ("4.1", "4.0", "20")];
    for (held_by, taken_by, lease) in runs {
        let dir = scratch();
        let export = dir.path().join("export");
        std::fs::create_dir(&export).unwrap();
        let serve = serve_command(&export, &format!("--lease {lease}"));
        let serve = serve.replace("192.0.2.1:2049", "0.0.0.0:2049");
        let server = format!("ip addr add 192.0.2.3/24 dev tap0; {serve}");
        let text = guest.run(&server, &[], "lease.sh", &[held_by, taken_by, lease]);
        assert!(text.contains(&format!("lease {held_by} {taken_by} {lease}: ok")), "{text}");
    }
}

#[test]
fn forgotten_owners_confirm_their_next_open() {
    let Some(guest) = Guest::find() else { return };
    let dir = scratch();
    let export = dir.path().join("export");
    std::fs::create_dir(&export).unwrap();
    let text = guest.run(&serve_command(&export, "--lease 5"), &[], "confirm.sh", &[]);
    assert!(text.contains("confirm: ok"), "{text}");
}

#[test]
fn fsx_passes_through_the_linux_client() {
    let Some(fsx) = conformance::program("fsx") else {
        return conformance::skip("fsx is not installed (cargo install fsx)");
    };
    let Some(guest) = Guest::find() else { return };
    for vers in VERSIONS {
        let dir = scratch();
        let export = dir.path().join("export");
        std::fs::create_dir(&export).unwrap();
        let args = [vers, fsx.to_str().unwrap(), "3000", "20201"];
        let text = guest.run(&serve_command(&export, ""), &[], "fsx.sh", &args);
        assert!(text.contains(&format!("fsx vers={vers}: ok")), "{text}");
    }
}

#[test]
fn weir_cp_reads_sparse_files_from_knfsd() {
    let Some(guest) = Guest::find() else { return };
    for needed in ["exportfs", "rpcbind", "mkfs.ext4"] {
        if conformance::program(needed).is_none() {
            return conformance::skip(format!("the kernel's server needs {needed}"));
        }
    }
    let dir = scratch();
    let files = dir.path().join("files");
    std::fs::create_dir(&files).unwrap();
    sparse_files(&files);
    let image = dir.path().join("disk.img");
    File::create(&image).unwrap().set_len(1 << 30).unwrap();
    let mkfs = Command::new(conformance::program("mkfs.ext4").unwrap())
        .args(["-q", "-F"])
        .arg(&image)
        .status();
    assert!(mkfs.unwrap().success());
    let out = dir.path().join("out");
    let client = format!(
        "while [[ ! -e {out}.ready ]]; do sleep 0.2; done; set -e; trap 'touch {out}.done' EXIT; \
         {weir} cp -r nfs://192.0.2.2/ {out}; {weir} cp -r -o noreadplus nfs://192.0.2.2/ {out}.plain; \
         {weir} cp -r {files} nfs://192.0.2.2/back; echo ok >{out}.status",
        out = out.display(),
        weir = weir().display(),
        files = files.display(),
    );
    let harness = guest.harness().to_str().unwrap();
    let args = [harness, files.to_str().unwrap(), out.to_str().unwrap()];
    let text = guest.run(&client, &["--disk", image.to_str().unwrap()], "knfsd.sh", &args);
    assert!(dir.path().join("out.status").exists(), "{text}");
    compare(&files, &out, true);
    compare(&files, &dir.path().join("out.plain"), false);
}

/// The same files with the same bytes and, if `blocks`, no more blocks than `cp --sparse=always`.
fn compare(files: &Path, copies: &Path, blocks: bool) {
    for entry in std::fs::read_dir(files).unwrap() {
        let file = entry.unwrap().path();
        let copy = copies.join(file.file_name().unwrap());
        let same = Command::new("cmp").arg(&file).arg(&copy).status().unwrap().success();
        assert!(same, "{} differs", copy.display());
        if blocks {
            let sparse = copies.join("reference");
            let cp = Command::new("cp").arg("--sparse=always").arg(&file).arg(&sparse).status();
            assert!(cp.unwrap().success());
            File::open(&sparse).unwrap().sync_all().unwrap();
            File::open(&copy).unwrap().sync_all().unwrap();
            let (ours, theirs) =
                (copy.metadata().unwrap().blocks(), sparse.metadata().unwrap().blocks());
            assert!(
                ours <= theirs,
                "{}: {ours} blocks, cp --sparse=always {theirs}",
                copy.display()
            );
            std::fs::remove_file(sparse).unwrap();
        }
    }
}

#[test]
fn delegations_are_granted_and_recalled() {
    let Some(guest) = Guest::find() else { return };
    for vers in ["4.0", "4.1", "4.2"] {
        let dir = scratch();
        let export = dir.path().join("export");
        std::fs::create_dir(&export).unwrap();
        let args = [vers, export.to_str().unwrap()];
        let text = guest.run(&serve_command(&export, ""), &[], "delegation.sh", &args);
        assert!(text.contains(&format!("delegation vers={vers}: ok")), "{text}");
        assert!(text.contains(&format!("OPENS {vers} 0\n")), "opens were not delegated: {text}");
    }
}

/// Files written under a delegation take no OPEN, CLOSE or GETATTR; if times are delegated, none of
/// them is set at the server before the delegation is returned.
#[test]
fn the_linux_client_opens_locally_under_a_write_delegation() {
    let Some(guest) = Guest::find() else { return };
    for times in ["off", "on"] {
        let dir = scratch();
        let export = dir.path().join("export");
        std::fs::create_dir(&export).unwrap();
        let on = if times == "on" { " --delegated-times" } else { "" };
        let server = killable(&export, &format!("--lease 10{on}"));
        let args = [export.to_str().unwrap(), times];
        let text = guest.run(&server, &[], "delegated.sh", &args);
        assert!(text.contains(&format!("delegated times={times}: ok")), "{text}");
        let calls = |what: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(what));
            line.unwrap_or_else(|| panic!("{text}")).trim().to_owned()
        };
        // The second open was a delegation alone, so nothing is closed.
        assert_eq!(calls("FIRST "), "opens 2 closes 1 getattrs 0 setattrs 0 returns 0");
        assert_eq!(calls("REST "), "opens 0 closes 0 getattrs 0 setattrs 0 returns 0");
        let set = if times == "on" { 0 } else { 1 };
        let expected = format!("opens 0 closes 0 getattrs 0 setattrs {set} returns 0");
        assert_eq!(calls("TOUCH "), expected);
    }
}

#[test]
fn a_restarted_server_does_not_wait_for_unmounted_clients() {
    let Some(guest) = Guest::find() else { return };
    let dir = scratch();
    let export = dir.path().join("export");
    std::fs::create_dir(&export).unwrap();
    let text = guest.run(&killable(&export, ""), &[], "unmount.sh", &[export.to_str().unwrap()]);
    assert!(text.contains("unmount: ok"), "{text}");
}

#[test]
fn long_copies_run_at_the_server() {
    let Some(guest) = Guest::find() else { return };
    let dir = scratch();
    let export = dir.path().join("export");
    std::fs::create_dir(&export).unwrap();
    mixed(&export.join("long"), 160 << 20, 16 << 20, true);
    let text = guest.run(&serve_command(&export, ""), &[], "copy.sh", &[export.to_str().unwrap()]);
    assert!(text.contains("copy: ok"), "{text}");
}
