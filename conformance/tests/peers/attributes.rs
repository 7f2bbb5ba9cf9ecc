//! Access control lists, extended attributes and umasks through the Linux client, compared with those
//! of the exported file system.

use conformance::{Guest, scratch, serve_command, skip};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

#[test]
fn attributes_are_those_of_the_exported_file_system() {
    for tool in ["setfacl", "getfacl", "setfattr", "nfs4_setfacl", "nfs4_getfacl"] {
        if conformance::program(tool).is_none() {
            return skip(format!("{tool} is not installed"));
        }
    }
    let Some(guest) = Guest::find() else { return };
    for vers in ["3", "4.0", "4.2"] {
        let dir = scratch();
        let export = dir.path().join("export");
        let native = export.join("native");
        std::fs::create_dir_all(native.join("with")).unwrap();
        std::fs::create_dir(native.join("without")).unwrap();
        std::fs::write(native.join("file"), "x").unwrap();
        setfacl(&native, "-m", "u:1000:rw,g:100:r,m::r", "file");
        setfacl(&native, "-dm", "u:1000:rwx,g:100:rx", "with");

        let args = [vers, export.to_str().unwrap()];
        let text = guest.run(&serve_command(&export, ""), &[], "attributes.sh", &args);
        let text = text.replace('\r', "");
        assert!(text.contains(&format!("attributes vers={vers}: ok")), "{text}");
        match vers {
            "3" => {
                assert_eq!(lists(between(&text, "v3")), lists_below(&export.join("v3")));
                assert_eq!(lists(between(&text, "native")), lists_below(&native));
            }
            _ => umasks_are_as_on_the_file_system(&native, vers),
        }
        if vers == "4.2" {
            let x = Command::new("getfattr").arg("-d").arg(export.join("v4.2/x")).output().unwrap();
            assert!(String::from_utf8(x.stdout).unwrap().contains("user.b=0sAAEC/w=="));
        }
    }
}

fn setfacl(dir: &Path, how: &str, list: &str, name: &str) {
    let set = Command::new("setfacl").args([how, list, name]).current_dir(dir).status();
    assert!(set.unwrap().success(), "setfacl {how} {list} {name}");
}

fn lists_below(dir: &Path) -> BTreeSet<String> {
    let listed = Command::new("getfacl").args(["-nR", "."]).current_dir(dir).output().unwrap();
    lists(&String::from_utf8(listed.stdout).unwrap())
}

/// The output of `getfacl` for each file, without its comments on effective rights.
fn lists(text: &str) -> BTreeSet<String> {
    let line = |line: &str| match line.split_once("\t") {
        Some((entry, _)) => entry.to_owned(),
        None => line.to_owned(),
    };
    let files = text.split("\n\n").filter(|file| !file.is_empty());
    files.map(|file| file.lines().map(line).collect::<Vec<_>>().join("\n")).collect()
}

/// The guest's output between marks.
fn between<'a>(text: &'a str, mark: &str) -> &'a str {
    let begun = text.split_once(&format!("BEGIN {mark}\n"));
    let (_, rest) = begun.unwrap_or_else(|| panic!("no {mark}: {text}"));
    rest.split_once(&format!("END {mark}\n")).unwrap().0
}

/// Creates natively what the guest created on the mount, and compares. (Minor version 2 sends the
/// umask; clients of earlier versions apply it themselves.)
fn umasks_are_as_on_the_file_system(native: &Path, vers: &str) {
    let script = "umask 027; for d in with without; do echo x >$d/here; mkdir $d/here.d; done";
    let made = Command::new("sh").args(["-c", script]).current_dir(native).status();
    assert!(made.unwrap().success());
    let mode = |name: &str| native.join(name).metadata().unwrap().permissions().mode();
    let list = |name: &str| {
        let listed =
            Command::new("getfacl").args(["-cn", name]).current_dir(native).output().unwrap();
        String::from_utf8(listed.stdout).unwrap()
    };
    for (there, here) in [("made", "here"), ("sub", "here.d")] {
        let (there, here) = (format!("without/{there}"), format!("without/{here}"));
        assert_eq!(mode(&there), mode(&here), "vers={vers} {there}");
    }
    if vers == "4.2" {
        assert_eq!(list("with/made"), list("with/here"));
        assert_eq!(list("with/sub"), list("with/here.d"));
    }
}
