//! `weir mv` of local files.

mod common;

use common::mount::{Mount, source};
use common::{Server, fail, json, run, scratch, weir, within};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

#[test]
fn to_a_name_and_into_a_directory() {
    let dir = scratch();
    let at = |path: &str| dir.path().join(path).into_os_string();
    fs::write(at("a"), "a").unwrap();
    fs::create_dir(at("d")).unwrap();
    run(["mv".into(), at("a"), at("b")]);
    run(["mv".into(), at("b"), at("d")]);
    assert_eq!(fs::read(at("d/b")).unwrap(), b"a");
    assert!(fail(1, ["mv".into(), at("a"), at("b")]).contains("no such file or directory"));
    fs::write(at("c"), "c").unwrap();
    let says = fail(1, ["mv".into(), "-n".into(), at("c"), at("d/b")]);
    assert!(says.contains("file exists"), "{says}");
    run(["mv".into(), at("c"), at("d/b")]);
    assert_eq!(fs::read(at("d/b")).unwrap(), b"c");
}

#[test]
fn at_a_server_a_link_to_a_directory_is_that_directory() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir_all(export.join("d")).unwrap();
    symlink("d", export.join("link")).unwrap();
    symlink("nowhere", export.join("dangling")).unwrap();
    // To a directory, for all clients that mount it there.
    symlink(export.join("d"), export.join("absolute")).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    for (round, version) in ["vers=3", "vers=4.2"].into_iter().enumerate() {
        let url = |path: &str| server.url(path, version);
        let name = format!("file{round}");
        fs::write(export.join(&name), "x").unwrap();
        run(["mv", &url(&name), &url("link")]);
        assert!(export.join("link").is_symlink() && export.join("d").join(&name).exists());
        fs::write(export.join(&name), "z").unwrap();
        let says = fail(1, ["mv", &url(&name), &url("absolute")]);
        assert!(says.contains("absolute is a symbolic link to /"), "{says}");
        assert!(export.join("absolute").is_symlink() && export.join(&name).exists());
        // Any other link is itself replaced, and a missing entry is no directory.
        fs::write(export.join(&name), "y").unwrap();
        let says = fail(1, ["mv", &url(&name), &url("new/")]);
        assert!(says.contains("there is no such directory; make it first"), "{says}");
        let says = fail(1, ["cp", export.join(&name).to_str().unwrap(), &url("new/")]);
        assert!(says.contains("there is no such directory; make it first"), "{says}");
        run(["mv", &url(&name), &url("dangling")]);
        assert_eq!(fs::read(export.join("dangling")).unwrap(), b"y");
        fs::remove_file(export.join("dangling")).unwrap();
        symlink("nowhere/either", export.join("dangling")).unwrap();
        // With a slash, a source is the directory, too, but not a name of it.
        let out = dir.path().join(format!("out{round}"));
        fs::create_dir(&out).unwrap();
        run(["cp", "-r", &url("link/"), out.to_str().unwrap()]);
        assert!(!out.join("link").is_symlink() && out.join("link").join(&name).exists());
        let measured = json(["du", "--json", &url("link/")]);
        assert_ne!(measured[0]["files"], 0, "{measured}");
        assert_eq!(measured[0]["directories"], 1, "{measured}");
        assert!(run(["find", &url("link/"), "--name", &name]).contains(&name));
        assert!(run(["ls", "-l", &url("link/")]).contains(&name));
        let file = format!("link/{name}/");
        for command in [
            &["mv", &url("link/"), &url("moved")][..],
            &["mv", &url("link/"), out.join("moved").to_str().unwrap()],
            &["mv", "-T", &url("d"), &url("link/")],
            &["rm", "-r", &url("link/")],
            &["cp", &url(&file), out.to_str().unwrap()],
            &["du", &url(&file)],
        ] {
            let says = fail(1, command);
            assert!(says.contains("not a directory"), "{command:?}: {says}");
            assert!(export.join("link").is_symlink() && export.join("d").join(&name).exists());
        }
    }
}

#[test]
fn several_into_a_directory_and_only_what_is_newer() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir_all(export.join("d/sub")).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let local = |path: &str| export.join(path).to_str().unwrap().to_owned();
    let targets: [&dyn Fn(&str) -> String; 3] =
        [&local, &|path: &str| server.url(path, "vers=3"), &|path: &str| {
            server.url(path, "vers=4.2")
        }];
    for at in targets {
        fs::write(export.join("a"), "a").unwrap();
        fs::write(export.join("b"), "b").unwrap();
        let report = json(["mv", "--json", &at("a"), &at("b"), &at("d")]);
        assert_eq!(report["changed"].as_array().unwrap().len(), 2, "{report}");
        run(["mv", "-t", &at(""), &at("d/a"), &at("d/b")]);
        assert!(export.join("a").exists() && export.join("b").exists());
        // b is the newer one.
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(100);
        fs::File::options().write(true).open(export.join("a")).unwrap().set_modified(old).unwrap();
        run(["mv", "-u", &at("a"), &at("b")]);
        assert_eq!(fs::read(export.join("b")).unwrap(), b"b");
        run(["mv", "-u", &at("b"), &at("a")]);
        assert_eq!(fs::read(export.join("a")).unwrap(), b"b");
        let says = fail(1, ["mv", "-T", &at("a"), &at("d")]);
        assert!(says.contains("directory"), "{says}");
        let says = fail(1, ["mv", &at("a"), &at("missing"), &at("d")]);
        assert!(says.contains("no such file"), "{says}");
        assert!(export.join("d/a").exists(), "the others are moved all the same");
        fs::remove_file(export.join("d/a")).unwrap();
        assert!(
            fail(1, ["mv", &at("x"), &at("y"), &at("z")]).contains("there is no such directory")
        );
    }
    assert!(fail(2, ["mv", "one"]).contains("2 values required"));
}

#[test]
fn to_another_file_system_and_nothing_is_lost() {
    let dir = scratch();
    let export = dir.path().join("export");
    let here = dir.path().join("here");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    for version in ["vers=3", "vers=4.2"] {
        fs::create_dir_all(here.join("tree/sub")).unwrap();
        fs::write(here.join("tree/sub/file"), "content").unwrap();
        symlink("sub/file", here.join("tree/link")).unwrap();
        let time = fs::metadata(here.join("tree/sub/file")).unwrap().mtime();
        let tree = here.join("tree").to_str().unwrap().to_owned();
        run(["mv", &tree, &server.url("", version)]);
        assert!(!here.join("tree").exists());
        assert_eq!(fs::read(export.join("tree/sub/file")).unwrap(), b"content");
        assert_eq!(fs::metadata(export.join("tree/sub/file")).unwrap().mtime(), time);
        assert!(export.join("tree/link").is_symlink());
        // A directory replaces only an empty one, and a file no directory.
        fs::create_dir_all(here.join("tree/full")).unwrap();
        let says = fail(1, ["mv", &server.url("tree", version), here.to_str().unwrap()]);
        assert!(says.contains("directory not empty"), "{says}");
        assert!(export.join("tree/sub/file").exists());
        fs::remove_dir(here.join("tree/full")).unwrap();
        fs::write(here.join("file"), "x").unwrap();
        let file = here.join("file").to_str().unwrap().to_owned();
        let says = fail(1, ["mv", "-T", &file, &server.url("tree", version)]);
        assert!(says.contains("is a directory"), "{says}");
        // A slash behind a name says that it is no file's.
        for name in ["tree/sub/file/", "tree/sub/file/.", "new/"] {
            let says = fail(1, ["mv", "-T", &file, &server.url(name, version)]);
            assert!(says.contains("not a directory"), "{says}");
        }
        let [from, to] = [server.url("tree/sub/file", version), format!("{file}/.")];
        let says = fail(1, ["mv", "-T", &from, &to]);
        assert!(says.contains("not a directory"), "{says}");
        assert_eq!(fs::read(&file).unwrap(), b"x");
        assert_eq!(fs::read(export.join("tree/sub/file")).unwrap(), b"content");
        let says = fail(1, ["mv", "-n", &file, &server.url("tree/sub/file", version)]);
        assert!(says.contains("file exists"), "{says}");
        assert_eq!(fs::read(&file).unwrap(), b"x");
        run(["mv", &server.url("tree", version), here.to_str().unwrap()]);
        assert!(here.join("tree/sub/file").exists() && !export.join("tree").exists());
        // The empty directory's own name is the new one.
        for (from, to, there) in [(&here, &export, "a"), (&export, &here, "b")] {
            fs::create_dir(to.join(there)).unwrap();
            let old = if there == "a" { "tree" } else { "a" };
            let at = |path: &Path, name: &str| match path == export {
                true => server.url(name, version),
                false => path.join(name).to_str().unwrap().to_owned(),
            };
            run(["mv", "-T", &at(from, old), &at(to, there)]);
            assert!(to.join(there).join("sub/file").exists() && !from.join(old).exists());
        }
        fs::remove_dir_all(&here).unwrap();
        fs::create_dir(&here).unwrap();
    }
}

#[test]
fn an_interrupted_move_of_several_touches_no_further_source() {
    const FILES: usize = 1000;
    let dir = scratch();
    let (export, here) = (dir.path().join("export"), dir.path().join("here"));
    fs::create_dir(&here).unwrap();
    for tree in ["a", "b"] {
        fs::create_dir_all(export.join(tree)).unwrap();
        (0..FILES).for_each(|n| fs::write(export.join(tree).join(n.to_string()), "x").unwrap());
    }
    let count = |path: PathBuf| fs::read_dir(path).map_or(0, Iterator::count);
    let server = Server::start(&export, &["--squash", "none"]);
    let [a, b] = ["a", "b"].map(|tree| server.url(tree, "vers=4.2"));
    let mut child =
        weir(["mv", &a, &b, here.to_str().unwrap()]).stderr(Stdio::piped()).spawn().unwrap();
    // The first one is being removed.
    within(Duration::from_secs(120), || (count(export.join("a")) < FILES).then_some(()));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let status = child.wait().unwrap();
    let says = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert_eq!(status.signal(), Some(Signal::INT.as_raw()), "{says}");
    assert!(says.contains("interrupted"), "{says}");
    assert!(says.contains("is complete; not all of") || !export.join("a").exists(), "{says}");
    assert_eq!(count(here.join("a")), FILES);
    assert_eq!(count(export.join("b")), FILES, "{says}");
    // Otherwise the signal came after the first source was gone, while the second one was copied.
    if export.join("a").exists() {
        assert_eq!(count(here.clone()), 1, "{says}");
    }
}

#[test]
fn a_source_that_cannot_be_copied_whole_stays() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    fs::write(dir.path().join("tree/a"), "a").unwrap();
    let server = Server::start(&export, &["--squash", "none", "--read-only"]);
    let tree = dir.path().join("tree").to_str().unwrap().to_owned();
    let says = fail(1, ["mv", &tree, &server.url("new", "vers=4.2")]);
    assert!(says.contains("the source stays as it is"), "{says}");
    assert_eq!(fs::read(dir.path().join("tree/a")).unwrap(), b"a");
}

/// The same file has another file system number at a server.
#[test]
fn a_file_is_not_moved_onto_itself_through_a_server() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir_all(export.join("empty")).unwrap();
    fs::write(export.join("file"), "the only copy").unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let path = |name: &str| export.join(name).to_str().unwrap().to_owned();
    for version in ["vers=3", "vers=4.2"] {
        for name in ["file", "empty"] {
            for (from, to) in [
                (path(name), server.url(name, version)),
                (server.url(name, version), path(name)),
                (path(name), server.url("", version)),
            ] {
                let says = fail(1, ["mv", &from, &to]);
                let is_refused = says.contains("same file") || says.contains("inside of it");
                assert!(is_refused, "{from} {to}: {says}");
                assert!(export.join("empty").is_dir());
                assert_eq!(fs::read(export.join("file")).unwrap(), b"the only copy");
            }
        }
    }
}

#[test]
fn a_link_at_another_file_system_is_replaced_itself() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    fs::write(export.join("precious"), "precious").unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    for (link, target) in [("current", "precious"), ("dangling", "nowhere")] {
        symlink(target, export.join(link)).unwrap();
        let source = dir.path().join("new");
        fs::write(&source, "new").unwrap();
        run(["mv", source.to_str().unwrap(), &server.url(link, "vers=4.2")]);
        assert!(export.join(link).symlink_metadata().unwrap().is_file(), "{link}");
        assert_eq!(fs::read(export.join(link)).unwrap(), b"new");
        assert!(!source.exists());
    }
    assert_eq!(fs::read(export.join("precious")).unwrap(), b"precious");
    assert!(!export.join("nowhere").exists());
    // One that cannot be followed may lead to a directory.
    symlink(export.join("precious"), export.join("absolute")).unwrap();
    let source = dir.path().join("new");
    fs::write(&source, "new").unwrap();
    let ends = [source.to_str().unwrap(), &server.url("absolute", "vers=4.2")];
    let says = fail(1, ["mv", ends[0], ends[1]]);
    assert!(says.contains("absolute is a symbolic link to /"), "{says}");
    assert!(export.join("absolute").is_symlink() && source.exists());
}

#[test]
fn of_two_names_of_one_file_the_source_goes() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let local = |name: &str| export.join(name).to_str().unwrap().to_owned();
    let remote = |name: &str| server.url(name, "vers=4.2");
    let ends: [&dyn Fn(&str) -> String; 2] = [&local, &remote];
    for end in ends {
        fs::write(export.join("a"), "x").unwrap();
        fs::hard_link(export.join("a"), export.join("b")).unwrap();
        assert!(fail(1, ["mv", &end("a"), &end("a")]).contains("same file"));
        assert!(export.join("a").exists());
        run(["mv", &end("a"), &end("b")]);
        assert!(!export.join("a").exists());
        assert_eq!(fs::read(export.join("b")).unwrap(), b"x");
        fs::remove_file(export.join("b")).unwrap();
    }
}

#[test]
fn two_sources_never_get_one_name() {
    let dir = scratch();
    let export = dir.path().join("export");
    let server = {
        fs::create_dir(&export).unwrap();
        Server::start(&export, &["--squash", "none"])
    };
    let url = |path: &str, version: &str| server.url(path, version);
    let local = |path: &str| export.join(path).to_str().unwrap().to_owned();
    for version in ["", "vers=3", "vers=4.2", "to a server"] {
        for source in ["s1/x", "s2/x"] {
            fs::create_dir_all(export.join(source).parent().unwrap()).unwrap();
            fs::write(export.join(source), source).unwrap();
        }
        let _ = fs::remove_dir_all(export.join("d"));
        fs::create_dir(export.join("d")).unwrap();
        // Version 4 and a local path: two file systems, so it is copied.
        let [from, to] = match version {
            "" => [local("s"), local("d")],
            "to a server" => [local("s"), url("d", "vers=4.2")],
            version => [url("s", version), url("d", version)],
        };
        let of = |n: u8| match from.split_once('?') {
            Some((path, query)) => format!("{path}{n}/x?{query}"),
            None => format!("{from}{n}/x"),
        };
        let says = fail(1, ["mv", &of(1), &of(2), &to]);
        assert!(says.contains("s2/x") && says.contains("it would replace"), "{says}");
        assert!(says.contains("s1/x"), "{says}");
        assert_eq!(fs::read(export.join("d/x")).unwrap(), b"s1/x", "{version}");
        assert_eq!(fs::read(export.join("s2/x")).unwrap(), b"s2/x", "{version}");
    }
}

#[test]
fn json_has_the_exact_names_of_what_was_moved() {
    let dir = scratch();
    fs::write(dir.path().join("a\\b"), "").unwrap();
    fs::create_dir(dir.path().join("d\n")).unwrap();
    let at = |path: &str| dir.path().join(path).to_str().unwrap().to_owned();
    let report = json(["mv", "--json", &at("a\\b"), &at("d\n")]);
    assert_eq!(report["changed"], serde_json::json!([at("d\n/a\\b")]));
    let server = Server::start(dir.path(), &["--squash", "none"]);
    let url = |path: &str| server.url(path, "vers=4.2");
    let report = json(["mv", "--json", &url("d%0A/a\\b"), &url("")]);
    assert_eq!(report["changed"], serde_json::json!([url("a\\b")]));
    let report = json(["mv", "--json", &url("a\\b"), &at("c\\d")]);
    assert_eq!(report["changed"], serde_json::json!([at("c\\d")]), "by a copy");
}

/// The kernel has no request for it there.
#[test]
fn on_a_mount_of_a_server_nothing_is_replaced_unasked() {
    let (near, source) = source();
    let server = Server::start(&source, &["--squash", "none"]);
    let url = server.url("", "vers=4.2");
    let Some(mount) = Mount::start(near.path(), "mnt", &[], &url) else { return };
    let at = |name: &str| mount.path(name).into_os_string();
    for name in ["a", "x"] {
        fs::write(at(name), name).unwrap();
        fs::write(near.path().join(name), "copied").unwrap();
    }
    fs::create_dir(at("d")).unwrap();
    let keep = |command: &str, from, to| weir([command.into(), "-n".into(), from, to]).output();
    let does = |command, from, to| assert!(keep(command, from, to).unwrap().status.success());
    does("mv", at("a"), at("b"));
    does("mv", at("d"), at("e"));
    does("cp", near.path().join("a").into_os_string(), at("c"));
    assert!(!Path::new(&at("a")).exists() && Path::new(&at("e")).is_dir());
    assert!(!keep("mv", at("x"), at("b")).unwrap().status.success());
    keep("cp", near.path().join("x").into_os_string(), at("b")).unwrap();
    for (name, data) in [("b", "a"), ("c", "copied"), ("x", "x")] {
        assert_eq!(fs::read_to_string(at(name)).unwrap(), data);
    }
}
