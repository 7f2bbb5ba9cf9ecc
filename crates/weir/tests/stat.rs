//! `weir stat` of local files.

mod common;

use common::{Server, fail, json, run, scratch, sparse};
use std::os::unix::fs::{MetadataExt, symlink};

#[test]
fn attributes_are_the_files() {
    let dir = scratch();
    let file = dir.path().join("disk");
    sparse(&file, 1 << 20, [(0, 8192)]);
    let stat = json(["stat".as_ref(), "--json".as_ref(), file.as_os_str()]);
    let meta = file.metadata().unwrap();
    assert_eq!(stat[0]["size_bytes"], 1 << 20);
    assert_eq!(stat[0]["allocated_bytes"], meta.blocks() * 512);
    assert_eq!(stat[0]["ino"], meta.ino());
    assert_eq!(stat[0]["mode"], format!("{:04o}", meta.mode() & 0o7777));
    let said = run(["stat".as_ref(), file.as_os_str()]);
    assert!(said.contains("space  8192 bytes (8.00 KiB), 0.8% of the size"), "{said}");
}

#[test]
fn links_are_followed_only_if_asked_for() {
    let dir = scratch();
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    std::fs::write(&file, "x").unwrap();
    symlink("file", &link).unwrap();
    let stat = json(["stat".as_ref(), "--json".as_ref(), link.as_os_str()]);
    assert_eq!((&stat[0]["kind"], &stat[0]["target"]), (&"symbolic link".into(), &"file".into()));
    let stat = json(["stat".as_ref(), "-L".as_ref(), "--json".as_ref(), link.as_os_str()]);
    assert_eq!(stat[0]["kind"], "regular file");
    assert!(fail(1, ["stat", "/nowhere/x"]).contains("cannot find /nowhere/x"));
}

#[test]
fn lines_by_a_format_are_those_of_stat() {
    let dir = scratch();
    let export = dir.path().join("export");
    std::fs::create_dir(&export).unwrap();
    sparse(&export.join("disk"), 1 << 20, [(0, 8192)]);
    let format = "%s|%b|%B|%f|%a|%A|%F|%u|%g|%h|%i|%X|%Y|%Z|100%%";
    let mut stat = std::process::Command::new("stat");
    let stat = stat.args(["-c", format]).arg(export.join("disk")).output().unwrap();
    let wanted = String::from_utf8(stat.stdout).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let local = export.join("disk").to_str().unwrap().to_owned();
    for file in [local, server.url("disk", "vers=3"), server.url("disk", "vers=4.2")] {
        assert_eq!(run(["stat", "-c", format, &file]), wanted, "{file}");
    }
    let name = std::ffi::OsString::from("%n: %N");
    let said = run(["stat".into(), "-c".into(), name, export.join("disk").into_os_string()]);
    let path = export.join("disk").display().to_string();
    assert_eq!(said, format!("{path}: '{path}'\n"));
    assert!(fail(2, ["stat", "-c", "%q", "x"]).contains("there is no %q"));
}
