//! Trees with other file systems in them, and links that lead out of them.

mod common;

use common::{Server, fail, scratch, text};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// Runs a script in a directory where `tree/mounted` has another file system; `$WEIR` is the binary. Returns
/// its standard output, or `None` if this process may not mount.
fn with_mounted(dir: &Path, script: &str) -> Option<String> {
    fs::create_dir_all(dir.join("tree/mounted/below")).unwrap();
    fs::create_dir_all(dir.join("tree/own")).unwrap();
    fs::write(dir.join("tree/own/file"), "own").unwrap();
    let mount = "mount -t tmpfs none tree/mounted && echo there > tree/mounted/file || exit 77\n";
    let script = format!("set -e\n{mount}{script}");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]).current_dir(dir);
    let output = command.env("WEIR", env!("CARGO_BIN_EXE_weir")).output().ok()?;
    match output.status.code() {
        Some(0) => Some(String::from_utf8(output.stdout).unwrap()),
        Some(77) | Some(1) if text(&output).contains("ermi") => None,
        _ => panic!("{}", text(&output)),
    }
}

const NO_MOUNTS: &str = "this process may not mount file systems";

#[test]
fn mounted_file_systems_belong_to_a_tree_unless_that_is_excluded() {
    let dir = scratch();
    let script = "\
        $WEIR find tree\n echo; $WEIR find tree -xdev\n echo; $WEIR find -mount tree -type f\n echo
        $WEIR du --json tree | tr -d ' ' | grep files\n $WEIR du -x --json tree | tr -d ' ' | grep files
        $WEIR ls tree\n $WEIR tree tree | grep -c file\n $WEIR checksum tree > sums; cat sums | wc -l; $WEIR checksum --check sums
        $WEIR chmod -R a-w tree\n stat -c %a tree/mounted/file";
    let Some(out) = with_mounted(dir.path(), script) else { return weir_skip::skip(NO_MOUNTS) };
    let expected = "\
        tree\ntree/mounted\ntree/mounted/file\ntree/own\ntree/own/file\n\n\
        tree\ntree/mounted\ntree/own\ntree/own/file\n\ntree/own/file\n\n\
        \"files\":2,\n\"files\":1,\nmounted\nown\n2\n2\ntree/mounted/file: OK\ntree/own/file: OK\n444\n";
    assert_eq!(out, expected);
}

#[test]
fn copies_enter_mounted_file_systems_unless_that_is_excluded() {
    let dir = scratch();
    let script = "\
        $WEIR cp -r tree all && (cd all; find . | sort)\n echo; $WEIR cp -rx tree one && (cd one; find . | sort)
        chmod 750 tree/mounted\n $WEIR cp -ax tree kept && stat -c %a kept/mounted";
    let Some(out) = with_mounted(dir.path(), script) else { return weir_skip::skip(NO_MOUNTS) };
    let expected = "\
        .\n./mounted\n./mounted/file\n./own\n./own/file\n\n.\n./mounted\n./own\n./own/file\n750\n";
    assert_eq!(out, expected);
}

#[test]
fn a_links_target_on_another_file_system_is_copied() {
    let dir = scratch();
    let script = "\
        mkdir links; ln -s ../tree/mounted/file links/file; ln -s ../tree/mounted links/all
        $WEIR cp -rL links copy && (cd copy; find . -type f | sort)
        $WEIR cp -rLx links one && (cd one; find . | sort)";
    let Some(out) = with_mounted(dir.path(), script) else { return weir_skip::skip(NO_MOUNTS) };
    assert_eq!(out, "./all/file\n./file\n.\n./all\n./file\n");
}

#[test]
fn an_export_below_another_root_is_another_file_system() {
    let dir = scratch();
    let mut config =
        format!("[server]\nlisten = \"127.0.0.1:0\"\nstate_dir = {:?}\n", dir.path().join("state"));
    for name in ["a", "b"] {
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), name).unwrap();
        config.push_str(&format!(
            "[[export]]\npath = {path:?}\nname = \"/{name}\"\nsquash = \"none\"\n"
        ));
    }
    fs::write(dir.path().join("weir.toml"), config).unwrap();
    let server = Server::configured(&dir.path().join("weir.toml"), &dir.path().join("log"));
    let top = server.url("", "vers=4.2");
    let names = |args: &[&str]| {
        let found = common::run(["find", &top].into_iter().chain(args.iter().copied()));
        let name =
            |line: &str| line.split('?').next().unwrap().rsplit_once('/').unwrap().1.to_owned();
        found.lines().map(name).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&[]), " a file b file");
    assert_eq!(names(&["-xdev"]), " a b");
    let files = |option: &[&str]| {
        let args = ["du", "--json", &top].into_iter().chain(option.iter().copied());
        common::json(args)[0]["files"].as_u64()
    };
    assert_eq!((files(&[]), files(&["-x"])), (Some(2), Some(0)));
    let copy = dir.path().join("copy");
    common::run(["cp", "-rx", &top, copy.to_str().unwrap()]);
    assert!(copy.join("b").is_dir() && !copy.join("b/file").exists());
}

#[test]
fn links_are_followed_on_request() {
    let dir = scratch();
    let export = dir.path().join("export");
    for made in ["from/sub", "from/sub2", "other/deep"] {
        fs::create_dir_all(export.join(made)).unwrap();
    }
    fs::write(export.join("other/deep/file"), "outside").unwrap();
    fs::write(export.join("from/file"), "inside").unwrap();
    for (link, target) in [
        ("link", "file"),
        ("linked", "../other"),
        ("sub/outside", "../../other/deep/file"),
        // Links to where they are in, directly and through each other.
        ("cycle", "."),
        ("sub/up", ".."),
        ("sub2/other", "../sub3"),
        ("sub3", "sub2"),
        ("dangling", "nowhere"),
    ] {
        symlink(target, export.join("from").join(link)).unwrap();
    }
    let server = Server::start(&export, &["--squash", "none"]);
    let local = export.join("from").to_str().unwrap().to_owned();
    for from in [local, server.url("from", "vers=3"), server.url("from", "vers=4.2")] {
        let to = dir.path().join("to");
        let says = fail(1, ["cp", "-rLT", &from, to.to_str().unwrap()]);
        let expected = ["cycle", "sub/up", "sub2/other", "sub3/other", "dangling"];
        let mut lines: Vec<&str> = says.lines().collect();
        for link in expected {
            let at = lines.iter().position(|line| line.contains(&format!("from/{link}")));
            let line = lines.remove(at.unwrap_or_else(|| panic!("{link}: {says}")));
            let why = if link == "dangling" { "no such file" } else { "a directory that it is in" };
            assert!(line.contains(why), "{line}");
        }
        assert!(lines.is_empty(), "{says}");
        let text = |path: &str| fs::read_to_string(to.join(path)).unwrap();
        assert_eq!((text("link"), text("file")), ("inside".into(), "inside".into()));
        for copied in ["linked/deep/file", "sub/outside"] {
            assert_eq!(text(copied), "outside");
        }
        let is_link = |path: &str| to.join(path).symlink_metadata().unwrap().is_symlink();
        assert!(!["link", "linked", "sub3", "sub/outside"].into_iter().any(is_link));
        fs::remove_dir_all(&to).unwrap();
        // The top itself may be a link.
        let top = from.replacen("/from", "/from/linked", 1);
        common::run(["cp", "-rLT", &top, to.to_str().unwrap()]);
        assert_eq!(text("deep/file"), "outside");
        fs::remove_dir_all(&to).unwrap();
    }
}

#[test]
fn many_links_need_few_stores() {
    let dir = scratch();
    let at = |path: String| dir.path().join(path);
    fs::create_dir(at("links".into())).unwrap();
    for n in 0..100 {
        fs::create_dir_all(at(format!("target/{n}"))).unwrap();
        fs::write(at(format!("target/{n}/file")), n.to_string()).unwrap();
        symlink(at(format!("target/{n}")), at(format!("links/{n}"))).unwrap();
    }
    // Each store holds descriptors: one for each target would need more than these.
    let script = format!("ulimit -n 300; exec {} cp -rLT links to", env!("CARGO_BIN_EXE_weir"));
    let output = Command::new("sh").args(["-c", &script]).current_dir(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    for n in 0..100 {
        assert_eq!(fs::read_to_string(at(format!("to/{n}/file"))).unwrap(), n.to_string());
    }
}
