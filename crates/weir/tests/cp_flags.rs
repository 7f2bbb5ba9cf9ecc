//! Flags of `weir cp` with the meaning that they have for cp(1).

mod common;

use common::{Server, fail, json, run, scratch, text, weir};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

fn set_age(path: &Path, seconds: u64) {
    let time = SystemTime::now() - Duration::from_secs(seconds);
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// Runs a test in a local directory, and in one that a server exports, by each version.
fn everywhere(test: impl Fn(&Path, &dyn Fn(&str) -> String)) {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    for version in ["", "vers=3", "vers=4.2"] {
        // The server would not find its export again if that were removed.
        let name = format!("of {version}");
        let here = export.join(&name);
        fs::create_dir(&here).unwrap();
        let at = |path: &str| match version {
            "" => here.join(path).to_str().unwrap().to_owned(),
            version => server.url(&format!("of%20{version}/{path}"), version),
        };
        test(&here, &at);
    }
}

#[test]
fn files_that_exist_stay_or_are_updated() {
    everywhere(|export, at| {
        fs::create_dir(export.join("from")).unwrap();
        fs::create_dir(export.join("to")).unwrap();
        for (name, age, there) in
            [("new", 10, None), ("newer", 10, Some(99)), ("older", 99, Some(10))]
        {
            fs::write(export.join("from").join(name), "source").unwrap();
            set_age(&export.join("from").join(name), age);
            if let Some(age) = there {
                fs::write(export.join("to").join(name), "there").unwrap();
                set_age(&export.join("to").join(name), age);
            }
        }
        let to = |name: &str| fs::read_to_string(export.join("to").join(name)).unwrap();
        let summary = json(["cp", "-rnT", "--json", &at("from"), &at("to")]);
        assert_eq!((&summary["files"], &summary["kept"]), (&1.into(), &2.into()));
        assert_eq!((to("new"), to("newer")), ("source".into(), "there".into()));
        let summary = json(["cp", "-ruT", "--json", &at("from"), &at("to")]);
        assert_eq!(to("newer"), "source");
        assert_eq!(to("older"), "there", "{summary}");
        // The last of several counts.
        run(["cp", "-rnuT", &at("from"), &at("to")]);
        assert_eq!(to("older"), "there");
        run(["cp", "-rnfT", &at("from"), &at("to")]);
        assert_eq!(to("older"), "there", "-f is no opposite of -n");
    });
}

#[test]
fn a_question_comes_before_each_replacement() {
    everywhere(|export, at| {
        fs::write(export.join("from"), "source").unwrap();
        for (answer, content) in [("n\n", "there"), ("", "there"), ("yes\n", "source")] {
            fs::write(export.join("to"), "there").unwrap();
            let mut command = weir(["cp", "-i", &at("from"), &at("to")]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            child.stdin.take().unwrap().write_all(answer.as_bytes()).unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", text(&output));
            assert!(text(&output).contains("replace "), "{}", text(&output));
            assert_eq!(fs::read_to_string(export.join("to")).unwrap(), content);
        }
    });
}

#[test]
fn the_destination_is_a_directory_or_a_name_as_asked_for() {
    everywhere(|export, at| {
        fs::create_dir_all(export.join("from/sub")).unwrap();
        fs::create_dir_all(export.join("to")).unwrap();
        fs::write(export.join("from/a"), "a").unwrap();
        fs::write(export.join("b"), "b").unwrap();
        run(["cp", "-t", &at("to"), &at("from/a"), &at("b")]);
        assert!(export.join("to/a").exists() && export.join("to/b").exists());
        run(["cp", "-aT", &at("from"), &at("to")]);
        assert!(export.join("to/sub").is_dir(), "into the directory itself");
        run(["cp", "-a", &at("from"), &at("to")]);
        assert!(export.join("to/from/sub").is_dir(), "into the directory by its name");
        let says = fail(1, ["cp", "-T", &at("b"), &at("to")]);
        assert!(says.contains("directory"), "{says}");
        let says = fail(1, ["cp", "-t", &at("missing"), &at("b")]);
        assert!(says.contains("there is no such directory"), "{says}");
        assert!(!export.join("missing").exists());
    });
    assert!(fail(2, ["cp", "-t", "x", "-T", "y"]).contains("cannot be used with"));
}

#[test]
fn an_archive_keeps_links_and_times_and_says_what_it_copies() {
    everywhere(|export, at| {
        fs::create_dir_all(export.join("from/sub")).unwrap();
        fs::write(export.join("from/sub/file"), "x").unwrap();
        set_age(&export.join("from/sub/file"), 1000);
        symlink("sub/file", export.join("from/link")).unwrap();
        let before = fs::metadata(export.join("from/sub/file")).unwrap();
        // Nothing is made by a dry run, which names the same files.
        let planned = run(["cp", "-a", "--dry-run", &at("from"), &at("to")]);
        assert!(!export.join("to").exists());
        let said = run(["cp", "-av", &at("from"), &at("to")]);
        let sorted = |text: &str| {
            let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&planned), sorted(&said));
        assert_eq!(said.lines().count(), 4, "{said}");
        assert!(said.lines().all(|line| line.contains(" -> ")), "{said}");
        assert_eq!(fs::metadata(export.join("to/sub/file")).unwrap().mtime(), before.mtime());
        assert_eq!(fs::read_link(export.join("to/link")).unwrap(), Path::new("sub/file"));
        let planned = run(["cp", "-a", "--dry-run", &at("from"), &at("to")]);
        assert!(!export.join("to/from").exists(), "{planned}");
    });
}

#[test]
fn a_bound_on_the_rate_holds() {
    let dir = scratch();
    fs::write(dir.path().join("from"), vec![7; 600_000]).unwrap();
    let from = dir.path().join("from").to_str().unwrap().to_owned();
    let to = dir.path().join("to").to_str().unwrap().to_owned();
    // The bytes before the last admitted chunk have passed when the copy ends.
    fs::write(dir.path().join("large"), vec![7; 3 << 20]).unwrap();
    let large = dir.path().join("large").to_str().unwrap().to_owned();
    let summary = json(["cp", "--json", "--bwlimit", "2M", &large, &to]);
    assert!(summary["seconds"].as_f64().unwrap() >= 1.0, "{summary}");
    assert!(common::same(&dir.path().join("large"), &dir.path().join("to")));
    run(["cp", "--bwlimit", "100M", &from, &to]);
    assert!(common::same(&dir.path().join("from"), &dir.path().join("to")));
}

/// They would be one byte per second, and after each byte.
#[test]
fn rates_and_checkpoints_are_no_shares() {
    let dir = scratch();
    let from = dir.path().join("from").to_str().unwrap().to_owned();
    let to = dir.path().join("to").to_str().unwrap().to_owned();
    fs::write(&from, "x").unwrap();
    for (command, option) in [("cp", "--bwlimit"), ("cp", "--checkpoint"), ("sync", "--bwlimit")] {
        let says = fail(2, [command, option, "50%", "--quiet", &from, &to]);
        assert!(says.contains("it could be a share of"), "{says}");
    }
    fs::write(&from, vec![7; 3 << 20]).unwrap();
    run(["cp", "--bwlimit", "0", &from, &to]);
}

#[test]
fn a_link_does_not_replace_the_file_that_it_leads_to() {
    everywhere(|export, at| {
        fs::create_dir(export.join("a")).unwrap();
        fs::create_dir(export.join("b")).unwrap();
        fs::write(export.join("data"), "data").unwrap();
        symlink("data", export.join("current")).unwrap();
        fs::write(export.join("b/f"), "f").unwrap();
        symlink("../b/f", export.join("a/f")).unwrap();
        let local = export.join("current").to_str().unwrap().to_owned();
        for args in [
            ["cp", "-a", &at("current"), &at("data")],
            ["cp", "-r", &local, &at("data")],
            ["cp", "-a", &at("a/f"), &at("b")],
            ["cp", "-aT", &at("a"), &at("b")],
            ["mv", "-f", &at("current"), &at("data")],
            ["mv", "-f", &local, &at("data")],
            ["mv", "-f", &at("a/f"), &at("b")],
        ] {
            let says = fail(1, args);
            assert!(says.contains("the same file"), "{args:?}: {says}");
            for (file, content) in [("data", "data"), ("b/f", "f")] {
                assert!(!export.join(file).is_symlink(), "{args:?}");
                assert_eq!(fs::read_to_string(export.join(file)).unwrap(), content, "{args:?}");
            }
            assert!(export.join("current").is_symlink() && export.join("a/f").is_symlink());
        }
        // Links that lead elsewhere replace a file, and so does one that leaves the file another name.
        symlink("nowhere", export.join("dangling")).unwrap();
        fs::write(export.join("old"), "old").unwrap();
        run(["cp", "-a", &at("dangling"), &at("old")]);
        assert_eq!(fs::read_link(export.join("old")).unwrap(), Path::new("nowhere"));
        fs::write(export.join("other"), "other").unwrap();
        run(["cp", "-a", &at("current"), &at("other")]);
        assert_eq!(fs::read_link(export.join("other")).unwrap(), Path::new("data"));
        fs::hard_link(export.join("data"), export.join("name")).unwrap();
        assert!(fail(1, ["mv", &at("current"), &at("data")]).contains("the same file"));
        run(["mv", &at("current"), &at("name")]);
        assert_eq!(fs::read_link(export.join("name")).unwrap(), Path::new("data"));
        assert_eq!(fs::read_to_string(export.join("name")).unwrap(), "data");
    });
}
