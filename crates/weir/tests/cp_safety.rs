//! `weir cp` and `weir cat` when their files change meanwhile: no command succeeds with wrong
//! bytes, and no source is lost.

mod common;

use common::{Server, fail, json, run, same, scratch, sparse, stop, text, weir, within};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;
use weir_client::MountOptions;
use weir_tools::copy::source;
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts};
use weir_vfs::{Access, Caller};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(120);

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name());
    let mut names: Vec<_> = entries.map(|n| n.into_string().unwrap()).collect();
    names.sort();
    names
}

/// Runs `weir` and stops it in the middle, once `is_there` holds; runs `change`, continues it, and
/// waits for its end. If it was done before it could be stopped, it is prepared and run again.
fn stopped(
    args: &[&OsStr],
    prepare: impl Fn(),
    is_there: impl Fn() -> bool,
    change: impl FnOnce(),
) -> Output {
    for _ in 0..50 {
        prepare();
        let mut command = weir(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let is_begun = within(LIMIT, || match child.try_wait().unwrap() {
            Some(status) => {
                assert!(status.success(), "{status}");
                Some(false)
            }
            None => is_there().then_some(true),
        });
        if is_begun {
            stop(&child);
            if is_there() {
                change();
                kill_process(Pid::from_child(&child), Signal::CONT).unwrap();
                return child.wait_with_output().unwrap();
            }
            child.kill().unwrap();
        }
        child.wait().unwrap();
    }
    panic!("it was done before it could be stopped, each time");
}

#[test]
fn a_source_that_changes_while_it_is_copied_is_not_published() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let begun = || names(&to).iter().any(|name| name.ends_with(".part"));
    type Change = fn(&File);
    let changes: [Change; 2] = [
        |file| file.set_len(256 * MIB - 5).unwrap(),
        // Same size, and the replaced part was read already.
        |file| file.write_all_at(b"new", 0).unwrap(),
    ];
    for options in [&[][..], &["--checksum"], &["--continue", "--checkpoint", "8M"]] {
        for change in changes {
            let prepare = || {
                let _ = fs::remove_dir_all(&to);
                fs::create_dir(&to).unwrap();
                sparse(&from, 256 * MIB, [(0, 4 * MIB)]);
            };
            let args = ["cp", "--sparse=never"].iter().chain(options).map(OsStr::new);
            let args: Vec<_> = args.chain([from.as_os_str(), to.as_os_str()]).collect();
            let output = stopped(&args, prepare, begun, || {
                change(&File::options().write(true).open(&from).unwrap());
            });
            assert_eq!(output.status.code(), Some(1), "{options:?}: {}", text(&output));
            assert!(text(&output).contains("it changed while it was read"), "{}", text(&output));
            assert_eq!(names(&to), [""; 0], "{options:?}");
        }
    }
}

#[test]
fn cat_reports_a_file_that_changes_during_the_read() {
    let dir = scratch();
    let from = dir.path().join("from");
    sparse(&from, 64 * MIB, [(0, 64 * MIB)]);
    let server = Server::start(dir.path(), &["--squash", "none"]);
    let sources = [
        from.to_str().unwrap().to_owned(),
        server.url("from", "vers=3&actimeo=600"),
        server.url("from", "vers=4.2&actimeo=600"),
    ];
    for source in sources {
        File::options().write(true).open(&from).unwrap().set_len(64 * MIB).unwrap();
        let mut child =
            weir(["cat", &source]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        // It cannot be finished, as a pipe buffers less than the rest.
        out.read_exact(&mut vec![0; MIB as usize]).unwrap();
        match source.starts_with("nfs:") {
            // By a client: the server notices that at once.
            true => drop(run(["touch", &server.url("from", "vers=4.2")])),
            false => {
                File::options().write(true).open(&from).unwrap().set_len(60 * MIB).unwrap();
            }
        }
        std::io::copy(&mut out, &mut std::io::sink()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{source}: {}", text(&output));
        assert!(text(&output).contains("it changed while it was read"), "{}", text(&output));
    }
}

/// Programs on the server's machine do not notify it: it checks when a client asks for attributes.
#[test]
fn a_change_by_a_local_program_of_the_server_is_reported() {
    type Change = fn(&File);
    let changes: [(&str, Change); 4] = [
        ("in place, before the reader", |file| file.write_all_at(b"new", 60 * MIB).unwrap()),
        ("in place, behind the reader", |file| file.write_all_at(b"new", 0).unwrap()),
        ("cut off", |file| file.set_len(48 * MIB + 77).unwrap()),
        ("cut off and made as long again", |file| {
            file.set_len(48 * MIB).unwrap();
            file.set_len(64 * MIB).unwrap();
        }),
    ];
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let from = export.join("from");
    let server = Server::start(&export, &["--squash", "none"]);
    for options in ["vers=3&actimeo=0", "vers=4.2"] {
        for (name, change) in changes {
            fs::write(&from, vec![7; 64 * MIB as usize]).unwrap();
            let url = server.url("from", options);
            let mut child =
                weir(["cat", &url]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let mut out = child.stdout.take().unwrap();
            // It cannot be finished, as a pipe buffers less than the rest.
            out.read_exact(&mut vec![0; MIB as usize]).unwrap();
            change(&File::options().write(true).open(&from).unwrap());
            std::io::copy(&mut out, &mut std::io::sink()).unwrap();
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(1), "cat {options}, {name}: {}", text(&output));
            assert!(text(&output).contains("changed while it was read"), "{}", text(&output));

            // The same during a copy.
            let to = dir.path().join("to");
            let prepare = || {
                let _ = fs::remove_dir_all(&to);
                fs::create_dir(&to).unwrap();
                fs::write(&from, vec![7; 64 * MIB as usize]).unwrap();
            };
            let begun = || {
                let part = names(&to).into_iter().find(|name| name.ends_with(".part"));
                part.is_some_and(|part| to.join(part).metadata().is_ok_and(|m| m.len() < 64 * MIB))
            };
            let args = ["cp".as_ref(), url.as_ref(), to.as_os_str()];
            let output = stopped(&args, prepare, begun, || {
                change(&File::options().write(true).open(&from).unwrap());
            });
            assert_eq!(output.status.code(), Some(1), "cp {options}, {name}: {}", text(&output));
            assert!(text(&output).contains("changed while it was read"), "{}", text(&output));
            assert_eq!(names(&to), [""; 0], "{options}, {name}");
            fs::remove_dir(&to).unwrap();
        }
    }
}

/// A client that reopens a file may get a delegation of it, under which it would not ask for
/// attributes; the server notices a local program's change only seconds later.
#[test]
fn a_reopened_file_is_checked_again() {
    let dir = scratch();
    let from = dir.path().join("from");
    let server = Server::start(dir.path(), &["--squash", "none"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for version in ["4.1", "4.2"] {
        fs::write(&from, "before").unwrap();
        let url = server.url("from", &format!("vers={version}"));
        let location = Location::parse(url.into()).unwrap();
        runtime.block_on(async {
            let mut mounts = Mounts::new(None, MountOptions::default()).unwrap();
            let place = mounts.place(&location, Links::Follow).await.unwrap();
            let id = place.existing("read").unwrap().id;
            let open = || place.fs.open(&Caller::Own, id, Access::READ);
            for _ in 0..5 {
                drop(open().await.unwrap());
                // It is closed in the background, and an open file is not opened again.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let file = open().await.unwrap();
            let before = source::look(&file).await.unwrap();
            fs::write(&from, "after all").unwrap();
            let failure = source::unchanged(&file, &before, "it").await.unwrap_err();
            assert!(failure.to_string().contains("it changed while it was read"), "{failure}");
            drop(file);
            mounts.unmount().await.unwrap();
        });
    }
}

#[test]
fn files_of_the_kernel_are_read_to_their_end() {
    let dir = scratch();
    let files = [
        "/proc/version",
        "/proc/cpuinfo",
        "/proc/self/mountinfo",
        "/sys/kernel/mm/transparent_hugepage/enabled",
    ];
    for (at, file) in files.into_iter().enumerate().filter(|(_, f)| Path::new(f).exists()) {
        let to = dir.path().join(at.to_string());
        let summary = json(["cp", "--checksum", "--json", file, to.to_str().unwrap()]);
        let copied = fs::read(&to).unwrap();
        assert!(!copied.is_empty() && !copied.ends_with(b"\0"), "{file}");
        assert_eq!(summary["size_bytes"], copied.len(), "{file}");
        if file == "/proc/version" {
            let all = fs::read_to_string(file).unwrap();
            assert_eq!(copied, all.as_bytes());
            assert_eq!(run(["cat", file]), all);
            assert_eq!(run(["cat", "--offset", "6", "--length", "7", file]), all[6..13]);
        }
    }
}

/// A directory with a file of 64 MiB, and a run of `cp --continue` of it that was stopped with part of it durable;
/// `then` gets the partial file. To its end, the run takes half a minute.
fn begun(then: impl FnOnce(&Path, &Path, PathBuf), end: bool) -> (tempfile::TempDir, Output) {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    sparse(&from, 64 * MIB, [(0, 64 * MIB)]);
    fs::create_dir(&to).unwrap();
    let part = || {
        let names = names(&to).into_iter();
        names.into_iter().find(|name| name.ends_with(".part") && !name.ends_with("-0.part"))
    };
    let rate = if end { "1M" } else { "2M" };
    let args = ["cp", "--continue", "--checkpoint", "1M", "--bwlimit", rate].map(Path::new);
    let output = {
        let (from, to) = (from.clone(), to.clone());
        let mut command = weir(args.into_iter().chain([&*from, &*to]));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        within(LIMIT, || {
            assert!(child.try_wait().unwrap().is_none(), "it was done before it could be stopped");
            part().is_some().then_some(())
        });
        stop(&child);
        if end {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        then(&from, &to, to.join(part().expect("it was done before it could be stopped")));
        if !end {
            kill_process(Pid::from_child(&child), Signal::CONT).unwrap();
        }
        child.wait_with_output().unwrap()
    };
    (dir, output)
}

#[test]
fn only_one_run_at_a_time_continues_a_partial_file() {
    let again = |from: &Path, to: &Path, _: PathBuf| {
        let args = ["cp", "--continue", "--checkpoint", "1M"].map(Path::new);
        let says = fail(1, args.into_iter().chain([from, to]));
        assert!(says.contains("another `weir cp --continue` writes to .weir-"), "{says}");
        assert_eq!(names(to).len(), 1, "{:?}", names(to));
    };
    let (dir, output) = begun(again, false);
    assert!(output.status.success(), "{}", text(&output));
    assert!(same(&dir.path().join("from"), &dir.path().join("to/from")));
    assert_eq!(names(&dir.path().join("to")), ["from"]);
}

#[test]
fn only_own_partial_files_are_continued() {
    type Spoil = fn(&Path);
    let spoils: [Spoil; 3] = [
        |part| fs::set_permissions(part, fs::Permissions::from_mode(0o644)).unwrap(),
        |part| File::options().write(true).open(part).unwrap().set_len(5).unwrap(),
        |part| fs::hard_link(part, part.with_extension("link")).unwrap(),
    ];
    for spoil in spoils {
        let again = |from: &Path, to: &Path, part: PathBuf| {
            spoil(&part);
            let args = ["cp", "--json", "--continue", "--checkpoint", "1M"].map(Path::new);
            let summary = json(args.into_iter().chain([from, to]));
            assert_eq!(summary["resumed_bytes"], 0, "{summary}");
            assert!(same(from, &to.join("from")));
        };
        begun(again, true);
    }
}

#[test]
fn a_checksum_covers_what_an_earlier_run_copied() {
    let again = |from: &Path, to: &Path, part: PathBuf| {
        File::options().write(true).open(&part).unwrap().write_all_at(b"spoilt", 77).unwrap();
        let args = ["cp", "--continue", "--checksum", "--checkpoint", "1M"].map(Path::new);
        let says = fail(1, args.into_iter().chain([from, to]));
        assert!(says.contains("the stored data differs from the written data"), "{says}");
        assert!(!to.join("from").exists());
    };
    begun(again, true);
}

#[test]
fn a_file_is_never_copied_over_itself() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let file = export.join("file");
    sparse(&file, 3 * MIB, [(0, 3 * MIB)]);
    let kept = dir.path().join("kept");
    fs::copy(&file, &kept).unwrap();
    fs::hard_link(&file, export.join("link")).unwrap();
    std::os::unix::fs::symlink("file", export.join("symlink")).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let refused = |from: &str, to: &str| {
        let says = fail(1, ["cp", "--in-place", from, to]);
        assert!(says.contains("they are the same file"), "{from} to {to}: {says}");
        assert!(same(&file, &kept), "{from} to {to}");
    };
    let local = |name: &str| export.join(name).to_str().unwrap().to_owned();
    let url = |name: &str, options: &str| server.url(name, options);
    refused(&local("file"), &local("link"));
    refused(&local("file"), &local("symlink"));
    refused(&local("file"), &url("file", "vers=4.2"));
    refused(&local("file"), &url("link", "vers=3"));
    refused(&url("file", "vers=4.2"), &local("link"));
    refused(&url("file", "vers=4.2"), &url("link", "vers=3"));
    // In a tree, too.
    let (a, b) = (dir.path().join("a"), dir.path().join("b/a"));
    fs::create_dir_all(&a).unwrap();
    fs::create_dir_all(&b).unwrap();
    fs::write(a.join("x"), "x").unwrap();
    fs::hard_link(a.join("x"), b.join("x")).unwrap();
    for option in ["--in-place", "--uncached"] {
        let into = dir.path().join("b");
        let says = fail(1, ["cp", "-r", option].map(Path::new).into_iter().chain([&*a, &*into]));
        assert!(says.contains("they are the same file"), "{says}");
        assert_eq!(fs::read(a.join("x")).unwrap(), b"x");
    }
}

#[test]
fn in_place_overwrites_the_existing_file() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    sparse(&from, 3 * MIB, [(MIB, 5)]);
    fs::write(&to, "longer than nothing").unwrap();
    fs::set_permissions(&to, fs::Permissions::from_mode(0o640)).unwrap();
    fs::hard_link(&to, dir.path().join("other")).unwrap();
    let before = to.metadata().unwrap();
    run(["cp", "--in-place"].map(Path::new).into_iter().chain([&*from, &*to]));
    let after = to.metadata().unwrap();
    assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()));
    assert!(same(&from, &dir.path().join("other")));
}

/// Its two names would get a mixture of both.
#[test]
fn in_place_a_file_gets_the_data_of_one_source_only() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    fs::create_dir(&to).unwrap();
    let cp = || {
        let ends = [from.join("."), to.clone()];
        weir(["cp", "-r", "--in-place"]).args(ends).output().unwrap()
    };
    fs::write(to.join("a"), "old").unwrap();
    fs::hard_link(to.join("a"), to.join("b")).unwrap();
    fs::write(from.join("a"), vec![1; 8 * MIB as usize]).unwrap();
    fs::write(from.join("b"), vec![2; 8 * MIB as usize]).unwrap();
    let output = cp();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("it is a hard link to a file that gets"), "{}", text(&output));
    let is_whole = |name: &str| same(&from.join(name), &to.join("a"));
    assert!(is_whole("a") || is_whole("b"));
    // Two names of one source.
    fs::remove_file(from.join("b")).unwrap();
    fs::hard_link(from.join("a"), from.join("b")).unwrap();
    let output = cp();
    assert!(output.status.success(), "{}", text(&output));
    assert!(is_whole("a"));
    assert_eq!(to.join("a").metadata().unwrap().ino(), to.join("b").metadata().unwrap().ino());
}

#[test]
fn an_unwritable_standard_error_does_not_stop_a_copy() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    fs::create_dir_all(to.join("from/5")).unwrap();
    for name in 0..10 {
        fs::write(from.join(name.to_string()), "x").unwrap();
    }
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (closed, pipe) = std::io::pipe().unwrap();
    drop(closed);
    for errors in [Stdio::from(full), Stdio::from(pipe)] {
        let mut command = weir(["cp", "-r"]);
        command.env("WEIR_LOG", "trace").args([&from, &to]).stdout(Stdio::null()).stderr(errors);
        // Of ten files one cannot be copied, which is reported; and the log.
        assert_eq!(command.status().unwrap().code(), Some(1));
        let copied = names(&to.join("from"));
        assert_eq!(copied, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    }
}

#[test]
fn cat_ends_silently_when_its_reader_ends() {
    let dir = scratch();
    let (hole, data) = (dir.path().join("hole"), dir.path().join("data"));
    sparse(&hole, 1 << 40, []);
    sparse(&data, 8 * MIB, [(0, 8 * MIB)]);
    for file in [hole, data] {
        let mut child = weir(["cat".as_ref(), file.as_os_str()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0; 10]).unwrap();
        let output = child.wait_with_output().unwrap();
        // Like a program that SIGPIPE ended.
        assert_eq!((output.status.code(), text(&output)), (Some(141), String::new()));
    }
}

#[test]
fn an_interrupted_copy_reports_what_it_leaves() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    sparse(&from, 256 * MIB, [(0, 256 * MIB)]);
    fs::create_dir(&to).unwrap();
    let args = ["cp", "--continue", "--checkpoint", "1M", "--bwlimit", "4M"].map(Path::new);
    let mut command = weir(args.into_iter().chain([&*from, &*to]));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    within(LIMIT, || {
        let begun = |name: &String| name.ends_with(".part") && !name.ends_with("-0.part");
        names(&to).iter().any(begun).then_some(())
    });
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(Signal::INT.as_raw()), "{}", text(&output));
    let part = to.join(&names(&to)[0]);
    let says = format!(
        "weir: interrupted\nweir: {} is unfinished; repeat the command to continue it, or remove it\n",
        part.display()
    );
    assert_eq!(text(&output), says);
}

#[test]
fn an_interrupted_copy_in_place_is_reported_as_incomplete() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    sparse(&from, 256 * MIB, [(0, 256 * MIB)]);
    fs::write(&to, "what was there").unwrap();
    let args = ["cp", "--in-place", "--bwlimit", "4M"].map(Path::new);
    let begun = || to.metadata().unwrap().len() > MIB;
    let mut command = weir(args.into_iter().chain([&*from, &*to]));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_child(&child);
    within(LIMIT, || {
        assert!(child.try_wait().unwrap().is_none(), "it was done before it was interrupted");
        begun().then_some(())
    });
    kill_process(pid, Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(Signal::INT.as_raw()), "{}", text(&output));
    let says = format!(
        "weir: interrupted\nweir: {} was overwritten in place and is incomplete\n",
        to.display()
    );
    assert_eq!(text(&output), says);
}

#[test]
fn a_second_interrupt_ends_a_copy_at_once() {
    let dir = scratch();
    let (from, export) = (dir.path().join("from"), dir.path().join("export"));
    sparse(&from, 256 * MIB, [(0, 256 * MIB)]);
    fs::create_dir(&export).unwrap();
    for version in ["3", "4.2"] {
        let server = Server::start(&export, &["--squash", "none"]);
        let url = server.url("to", &format!("vers={version}"));
        let mut command = weir(["cp", "--bwlimit", "4M"]);
        command.args([from.as_os_str(), url.as_ref()]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        within(LIMIT, || {
            assert!(child.try_wait().unwrap().is_none(), "it was done before it was interrupted");
            names(&export).iter().any(|name| name.ends_with(".part")).then_some(())
        });
        // It cannot end cleanly, as that requires replies.
        server.pause();
        let part = names(&export).into_iter().find(|name| name.ends_with(".part"));
        let part = part.expect("it was done before it was interrupted");
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::INT).unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "weir: interrupted");
        kill_process(pid, Signal::INT).unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "weir: interrupted again, ending at once");
        let left = format!("/{part} is left over; remove it");
        assert!(said.next().unwrap().unwrap().ends_with(&left), "{left}");
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::INT.as_raw()));
        drop(server);
        fs::remove_file(export.join(part)).unwrap();
    }
}

#[test]
fn cleaning_up_an_interrupted_copy_does_not_wait_for_a_server() {
    let dir = scratch();
    let (export, to) = (dir.path().join("export"), dir.path().join("to"));
    for dir in [&export, &to] {
        fs::create_dir(dir).unwrap();
    }
    sparse(&export.join("from"), 256 * MIB, [(0, 256 * MIB)]);
    let server = Server::start(&export, &["--squash", "none"]);
    let url = server.url("from", "vers=4.2");
    let interrupted = || {
        let mut command = weir(["cp", "--bwlimit", "4M"]);
        command.args([url.as_ref(), to.as_os_str()]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        within(LIMIT, || {
            assert!(child.try_wait().unwrap().is_none(), "it was done before it was interrupted");
            names(&to).iter().any(|name| name.ends_with(".part")).then_some(())
        });
        server.pause();
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        server.signal(Signal::CONT);
        assert_eq!(output.status.signal(), Some(Signal::INT.as_raw()), "{}", text(&output));
        assert_eq!(names(&to), [""; 0]);
        text(&output)
    };
    let said = "weir: interrupted\nweir: ending; a server does not answer\n";
    // On a busy machine the copy may have read all of the file before the server stops.
    assert!((0..5).any(|_| interrupted() == said), "no copy missed its server");
}
