//! The options of `weir mount`, by flags and after `-o`, as the mount has them.

mod common;

use common::mount::{Mount, PATIENCE, source};
use common::{Server, fail, text, weir, within};
use serde_json::Value;
use std::fs;
use std::io::ErrorKind;

/// The options in the table of mounts.
fn flags(mount: &Mount) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_own = |line: &&str| line.split(' ').nth(4) == mount.dir.to_str();
    let line = table.lines().find(is_own).unwrap();
    line.split(' ').nth(5).unwrap().split(',').map(str::to_owned).collect()
}

fn has(mount: &Mount, flag: &str) -> bool {
    flags(mount).iter().any(|one| one == flag)
}

#[test]
fn read_only_may_come_after_o_or_in_a_url() {
    let (near, source) = source();
    fs::write(source.join("f"), "x").unwrap();
    let server = Server::start(&source, &["--squash", "none"]);
    let local = source.to_str().unwrap();
    for (options, from) in [
        (&["-o", "noatime,ro"][..], local),
        (&["-o", "ro"], &server.url("", "vers=4.2")),
        (&[], &server.url("", "vers=4.2&ro")),
    ] {
        let Some(mount) = Mount::start(near.path(), "mnt", options, from) else { return };
        assert!(has(&mount, "ro"), "{options:?} {from}");
        let refused = fs::write(mount.path("f"), "y").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem, "{options:?} {from}");
        assert!(fs::write(mount.path("new"), "y").is_err());
        assert_eq!(fs::read(mount.path("f")).unwrap(), b"x");
    }
    assert_eq!(fs::read(source.join("f")).unwrap(), b"x");
    let Some(mount) = Mount::start(near.path(), "mnt", &["-o", "ro,rw"], local) else { return };
    fs::write(mount.path("f"), "y").unwrap();
}

#[test]
fn uncached_may_come_after_o_or_in_a_url() {
    const BYTES: usize = 8 << 20;
    let (near, source) = source();
    fs::write(source.join("f"), vec![1; BYTES]).unwrap();
    let server = Server::start(&source, &["--squash", "none"]);
    for (options, from, kept) in [
        (&[][..], source.to_str().unwrap(), BYTES),
        (&["-o", "uncached"], source.to_str().unwrap(), 0),
        (&["-o", "uncached"], &server.url("", "vers=4.2"), 0),
        (&[], &server.url("", "vers=4.2&uncached"), 0),
    ] {
        let Some(mount) = Mount::start(near.path(), "mnt", options, from) else { return };
        assert!(fs::read(mount.path("f")).unwrap().len() == BYTES);
        // Pages are dropped after the reply.
        within(PATIENCE, || {
            let mut status = weir(["status", "--json"]);
            status.arg(mount.path("f")).env("XDG_RUNTIME_DIR", near.path());
            let output = status.output().unwrap();
            assert!(output.status.success(), "{}", text(&output));
            let said: Value = serde_json::from_slice(&output.stdout).unwrap();
            (said[0]["resident_bytes"] == kept).then_some(())
        });
    }
}

#[test]
fn programs_are_refused_where_that_is_asked_for() {
    let (near, source) = source();
    for (options, refused) in [
        (&[][..], false),
        (&["--no-exec"], true),
        (&["-o", "noexec"], true),
        // Source: mount(8).
        (&["-o", "user"], true),
        (&["-o", "users,exec"], false),
    ] {
        let from = source.to_str().unwrap();
        let Some(mount) = Mount::start(near.path(), "mnt", options, from) else { return };
        assert_eq!(has(&mount, "noexec"), refused, "{options:?}");
        assert!(has(&mount, "nosuid") && has(&mount, "nodev"), "{options:?}");
    }
}

#[test]
fn options_of_servers_are_refused_for_a_directory() {
    let (near, source) = source();
    let at = near.path().join("mnt");
    fs::create_dir(&at).unwrap();
    for option in ["vers=4.2", "soft", "uid=3999999998", "noexec,actimeo=3"] {
        let said = fail(
            1,
            ["mount".as_ref(), "-o".as_ref(), option.as_ref(), source.as_os_str(), at.as_os_str()],
        );
        assert!(said.contains("options of servers"), "{option}: {said}");
    }
}
