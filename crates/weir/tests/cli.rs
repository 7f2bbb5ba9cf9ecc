//! The command line as such: help, bad arguments, exit codes.

mod common;

use common::{fail, run, scratch};

#[test]
fn help_has_examples() {
    for command in [
        "ls", "cat", "stat", "cp", "map", "df", "du", "tree", "mkdir", "mv", "rm", "touch",
        "chmod", "chown", "ln", "truncate", "find", "exports",
    ] {
        let help = run(["help", command]);
        assert!(help.contains("Examples:") && help.contains(&format!("weir {command} ")), "{help}");
    }
}

#[test]
fn usage_errors_exit_with_2() {
    assert!(fail(2, ["frobnicate"]).contains("unrecognized subcommand"));
    assert!(fail(2, ["cp", "one"]).contains("2 values required"));
    assert!(fail(2, ["ls", "nfs:///x"]).contains("it names no host"));
    assert!(fail(2, ["serve", "--bind", "here", "."]).contains("write it like 0.0.0.0:2049"));
    assert!(fail(2, ["ls", "--budget", "much"]).contains("write it like 4096, 512M"));
}

#[test]
fn failures_are_reported_with_advice() {
    let says = fail(1, ["ls", "-o", "vers=9", "nfs://127.0.0.1/"]);
    assert!(says.contains("vers=9") && says.contains("3, 4, 4.0, 4.1 and 4.2"), "{says}");
    // No server listens on port 1 of loopback.
    let says = fail(1, ["ls", "-o", "soft,retrans=0,timeo=10", "nfs://127.0.0.1:1/"]);
    assert!(says.contains("cannot mount nfs://127.0.0.1:1/"), "{says}");
    assert!(says.contains("check that the server runs"), "{says}");
}

#[test]
fn packagers_get_manual_pages_and_completions() {
    let dir = scratch();
    run(["man".as_ref(), dir.path().as_os_str()]);
    let page = std::fs::read_to_string(dir.path().join("weir-cp.1")).unwrap();
    assert!(page.contains("Examples"), "{page}");
    assert!(run(["help"]).contains("manual pages"));
    // An installed program knows where its pages belong.
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let program = bin.join("weir");
    std::fs::copy(env!("CARGO_BIN_EXE_weir"), &program).unwrap();
    let installed = loop {
        // The copy is busy while a process just forked by another test still has it open.
        match std::process::Command::new(&program).args(["man", "--install"]).output() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            installed => break installed.unwrap(),
        }
    };
    assert!(installed.status.success(), "{installed:?}");
    assert!(dir.path().join("share/man/man1/weir-cp.1").exists());
    assert!(fail(1, ["man", "--install"]).contains("name a directory"), "target/debug is no bin");
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(["completions", shell]).contains("weir"));
    }
}
