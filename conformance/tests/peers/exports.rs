//! Several exports of `weir serve --config` under the Linux kernel's client: as one tree over NFSv4, by
//! path over NFSv3, and with a reload while they are in use.

use conformance::{Guest, scratch, weir};
use std::fs;
use std::path::Path;

/// The configuration that the server starts with.
fn config(base: &Path) -> String {
    let b = base.display();
    format!(
        "[server]\nlisten = \"192.0.2.1:2049\"\nstate_dir = \"{b}/state\"\nlease = 10\nrpcbind = true\n\
         [[export]]\npath = \"{b}/alpha\"\nname = \"/alpha\"\nsquash = \"none\"\n\
         clients = [\"192.0.2.0/24\", \"2001:db8::/32\"]\n\
         [[export]]\npath = \"{b}/ro\"\nname = \"/srv/ro\"\nread_only = true\n\
         [[export]]\npath = \"{b}/squashed\"\nname = \"/srv/squashed\"\nsquash = \"all\"\n\
         anon_uid = 1234\nanon_gid = 1235\n\
         [[export]]\npath = \"{b}/shut\"\nname = \"/shut\"\nclients = \"198.51.100.0/24\"\n"
    )
}

/// The configuration after the reload, with one export added and one removed.
fn other(base: &Path) -> String {
    let text = config(base);
    let (first, shut) = text.split_once("[[export]]\npath = ").unwrap_or_default();
    let rest: Vec<&str> = shut.split("[[export]]\npath = ").collect();
    format!(
        "{first}[[export]]\npath = \"{b}/new\"\nname = \"/new\"\n[[export]]\npath = {}\
         [[export]]\npath = {}",
        rest[0],
        rest[1],
        b = base.display()
    )
}

#[test]
fn several_exports_in_one_tree_and_each_by_itself() {
    let Some(guest) = Guest::find() else { return };
    for needed in ["rpcbind", "showmount"] {
        if conformance::program(needed).is_none() {
            return conformance::skip(format!("listing exports needs {needed}"));
        }
    }
    let dir = scratch();
    let base = dir.path();
    for name in ["alpha", "ro", "squashed", "shut", "new"] {
        fs::create_dir(base.join(name)).unwrap();
        fs::write(base.join(name).join("notes"), format!("in {name}\n")).unwrap();
    }
    std::os::unix::fs::chown(base.join("squashed"), Some(1234), Some(1235)).unwrap();
    fs::create_dir(base.join("alpha/sub")).unwrap();
    fs::write(base.join("alpha/sub/below"), "below\n").unwrap();
    fs::write(base.join("weir.toml"), config(base)).unwrap();
    fs::write(base.join("other.toml"), other(base)).unwrap();
    // The port mapper keeps its socket and lock in /run, which is private to this server.
    // `unshare` ignores SIGTERM; all processes end when the test's directory is removed.
    let serving = format!(
        "{weir} serve --config {b}/weir.toml & pid=$!; while [[ -e {b} ]] && kill -0 $pid; do \
         if [[ -e {b}/reload ]]; then rm {b}/reload; kill -HUP $pid; fi; sleep 0.1; done",
        weir = weir().display(),
        b = base.display()
    );
    let server = format!(
        "exec unshare --mount --pid --fork --kill-child bash -c \
         'mount -t tmpfs tmpfs /run; mkdir /run/rpcbind; rpcbind; {serving}'"
    );
    let text = guest.run(&server, &[], "exports.sh", &[base.to_str().unwrap()]);
    assert!(text.contains("exports: ok"), "{text}");
    for vers in ["4.2", "4.1", "4.0"] {
        assert!(text.contains(&format!("tree vers={vers}: ok")), "{text}");
    }
    let squashed = fs::read_dir(base.join("squashed")).unwrap();
    assert_eq!(squashed.count(), 1, "what was made through the squashed export was removed");
}
