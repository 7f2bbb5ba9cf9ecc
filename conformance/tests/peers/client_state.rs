//! State of Weir's client at other servers and at Weir's. Locks (`weir lock`) of all versions conflict,
//! the server notifies waiters, and a restart of the server loses no lock. The client gets and returns
//! delegations, and leaves no state when it has ended.

use conformance::{Guest, program, scratch, skip, text_of, weir};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SCRIPTS: &str = "conformance/guest";

/// Runs a script natively, in its own network and mount namespaces.
fn run_unshared(script: &str, args: &[&str]) -> Option<String> {
    for needed in ["rpcbind", "rpc.statd", "unshare", "ip"] {
        if program(needed).is_none() {
            skip(format!("locks of the client need {needed}"));
            return None;
        }
    }
    if !Command::new("unshare").args(["-mn", "true"]).status().is_ok_and(|s| s.success()) {
        skip("locks of the client need root, for a network of their own");
        return None;
    }
    let script = conformance::workspace().join(SCRIPTS).join(script);
    let mut command = Command::new("unshare");
    command.args(["-mn", "--pid", "--fork", "--kill-child", "--mount-proc", "bash"]);
    let output = command.arg(script).args(args).stdin(Stdio::null()).output().unwrap();
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    Some(text)
}

/// The server calls a client that waits over version 3 for a lock held over version 4.
fn is_called(text: &str) {
    let told = |line: &&str| line.starts_with("GRANTED 4.2:3 ") && !line.ends_with("told 0");
    assert!(text.lines().any(|line| told(&line)), "{text}");
}

/// Runs a script with nfs-ganesha's and the client's machines.
fn beside_ganesha(script: &str, first: &str) -> Option<String> {
    if program("ganesha.nfsd").is_none() {
        skip("state at nfs-ganesha needs ganesha.nfsd");
        return None;
    }
    let dir = scratch();
    let at = dir.path().to_str().unwrap();
    run_unshared("ganesha-client.sh", &[script, first, weir().to_str().unwrap(), at])
}

fn ganesha(part: &str) -> Option<String> {
    let text = beside_ganesha("client-locks.sh", part)?;
    assert!(text.contains(&format!("client locks {part}: ok")), "{text}");
    Some(text)
}

#[test]
fn locks_at_ganesha_conflict() {
    if let Some(text) = ganesha("rules") {
        is_called(&text);
    }
}

#[test]
fn locks_at_ganesha_survive_its_restart() {
    ganesha("restart");
}

/// Runs `client` natively beside knfsd, which exports /run/exp and follows requests in files of the
/// directory; returns the output of both.
fn beside_knfsd(client: impl FnOnce(&str) -> String) -> Option<String> {
    let guest = Guest::find()?;
    for needed in ["exportfs", "rpcbind", "rpc.statd", "mkfs.ext4"] {
        if program(needed).is_none() {
            skip(format!("the kernel's server needs {needed}"));
            return None;
        }
    }
    let dir = scratch();
    let at = dir.path().to_str().unwrap();
    let image = dir.path().join("disk.img");
    File::create(&image).unwrap().set_len(256 << 20).unwrap();
    let mkfs = Command::new(program("mkfs.ext4").unwrap()).args(["-q", "-F"]).arg(&image).status();
    assert!(mkfs.unwrap().success());
    // The port mapper keeps its socket and lock in /run, which is private to this client.
    let client = format!(
        "exec unshare --mount --pid --fork --kill-child bash -c 'trap \"touch {at}/done\" EXIT; \
         mount -t tmpfs tmpfs /run; mkdir /run/rpcbind; rpcbind -w; \
         while [[ ! -e {at}/up ]]; do sleep 0.2; done; {}'",
        client(at),
    );
    let harness = guest.harness().to_str().unwrap();
    let options = ["--disk", image.to_str().unwrap()];
    Some(guest.run(&client, &options, "knfsd-locks.sh", &[harness, at]))
}

fn knfsd(part: &str) {
    let script = conformance::workspace().join(SCRIPTS).join("client-locks.sh");
    let (script, weir) = (script.display(), weir().display());
    let client = |at: &str| format!("bash {script} {part} {weir} 192.0.2.2 /run/exp \"\" {at}");
    if let Some(text) = beside_knfsd(client) {
        assert!(text.contains(&format!("client locks {part}: ok")), "{text}");
    }
}

#[test]
fn locks_at_knfsd_conflict() {
    // Linux 6.12 sends no CB_NOTIFY_LOCK: it answers that it may, and forgets the waiter at once.
    knfsd("rules");
}

#[test]
fn locks_at_knfsd_survive_its_restart() {
    knfsd("restart");
}

/// knfsd delegates files to the client, and recalls them when a program of its machine writes to them.
#[test]
fn knfsd_delegates_files_and_recalls_them() {
    let peer = client_test("peer");
    let client = |at: &str| {
        let run = "--ignored --nocapture a_peers_delegation_is_used_until_it_is_recalled";
        format!(
            "for v in 4.1 4.2; do RUST_LOG=weir_client=debug WEIR_PEER_DO={at}/do \
             WEIR_PEER=\"nfs://192.0.2.2/?vers=$v&actimeo=0\" {} {run} || exit; done",
            peer.display()
        )
    };
    if let Some(text) = beside_knfsd(client) {
        for version in ["4.1", "4.2"] {
            let recalled = text.contains(&format!("recalled by NFSv{version}"));
            assert!(recalled, "{text}");
        }
    }
}

/// Not over version 4.2: there nfs-ganesha's READ_PLUS returns holes as data, it has no COPY, and it accepts
/// an ALLOCATE of no bytes.
#[test]
fn the_suite_of_stores_passes_at_ganesha() {
    let suite = client_test("peer");
    if let Some(text) = beside_ganesha("client-suite.sh", suite.to_str().unwrap()) {
        for version in ["3", "4.0", "4.1"] {
            assert!(text.contains(&format!("client suite {version}: ok")), "{text}");
        }
    }
}

#[test]
fn an_ended_client_leaves_no_state_at_knfsd() {
    let script = conformance::workspace().join(SCRIPTS).join("client-leftovers.sh");
    let (script, weir) = (script.display(), weir().display());
    let client = |at: &str| format!("bash {script} {weir} 192.0.2.2 {at}");
    if let Some(text) = beside_knfsd(client) {
        assert!(text.contains("client leftovers: ok"), "{text}");
    }
}

/// Builds a test of the client crate, and returns its path.
fn client_test(name: &str) -> PathBuf {
    let output = Command::new(env!("CARGO"))
        .args(["test", "--quiet", "--package", "weir-client", "--test", name, "--no-run"])
        .args(["--message-format", "json"])
        .current_dir(conformance::workspace())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    let messages = String::from_utf8(output.stdout).unwrap();
    let mut built = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let built = message["target"]["name"] == name;
        built.then(|| message["executable"].as_str().map(PathBuf::from))?
    });
    built.next_back().expect("cargo says what it built")
}

#[test]
fn locks_at_weir_conflict() {
    let dir = scratch();
    let export = dir.path().join("export");
    std::fs::create_dir(&export).unwrap();
    let text = weir_server(dir.path(), &export, "rules");
    if let Some(text) = text {
        assert!(text.contains("client locks rules: ok"), "{text}");
        is_called(&text);
    }
}

fn weir_server(dir: &Path, export: &Path, part: &str) -> Option<String> {
    let [dir, export, weir] = [dir, export, weir()].map(|path| path.to_str().unwrap());
    run_unshared("weir-locks.sh", &[part, weir, export, dir])
}
