//! `weir serve --config`: the file's settings, and reloads while serving.

mod common;

use common::{Server, fail, json, run, scratch, text, weir, within};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

struct Setup {
    dir: tempfile::TempDir,
}

impl Setup {
    /// Directories `a` to `c`, each with a file of the same name in it.
    fn new() -> Self {
        let dir = scratch();
        for name in ["a", "b", "c"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join(format!("in-{name}")), name).unwrap();
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn config(&self) -> PathBuf {
        self.path("weir.toml")
    }

    /// Writes the configuration: server settings, and the name and further keys of each export.
    fn write(&self, server: &str, exports: &[(&str, &str)]) {
        let mut text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nstate_dir = {:?}\n{server}\n",
            self.path("state")
        );
        for (name, options) in exports {
            let dir = self.path(name);
            text.push_str(&format!(
                "[[export]]\npath = {dir:?}\nname = \"/{name}\"\nsquash = \"none\"\n{options}\n"
            ));
        }
        // As editors do it, so that the server never reads a partial file.
        fs::write(self.path("weir.toml.new"), text).unwrap();
        fs::rename(self.path("weir.toml.new"), self.config()).unwrap();
    }

    fn start(&self) -> Server {
        Server::configured(&self.config(), &self.path("log"))
    }

    /// The server's log, once it contains `what`.
    fn logged(&self, what: &str) -> String {
        within(PATIENCE, || {
            Some(fs::read_to_string(self.path("log")).unwrap()).filter(|log| log.contains(what))
        })
    }

    /// Clears the log, and makes the server reload its file.
    fn reload(&self, server: &Server, logs: &str) -> String {
        fs::OpenOptions::new().write(true).open(self.path("log")).unwrap().set_len(0).unwrap();
        server.signal(Signal::HUP);
        self.logged(logs)
    }
}

fn names(server: &Server, path: &str) -> Vec<String> {
    run(["ls", &server.url(path, "vers=4.2")]).lines().map(ToOwned::to_owned).collect()
}

/// Whether a process has a file open below a directory.
fn holds(server: &Server, dir: &Path) -> bool {
    let fds = fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap();
    fds.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|target| target.starts_with(dir)))
}

#[test]
fn a_file_is_checked_without_serving() {
    let setup = Setup::new();
    setup.write("budget = \"64M\"", &[("a", "read_only = true"), ("b", "cache = \"uncached\"")]);
    let config = setup.config();
    let check = |more: &[&str]| {
        let fixed = ["serve", "--check", "--config", config.to_str().unwrap()];
        fixed.iter().chain(more).map(ToString::to_string).collect::<Vec<_>>()
    };
    let said = run(check(&[]));
    assert!(said.contains("budget    64.00 MiB"), "{said}");
    assert!(said.contains("limits    connections 16384\n"), "{said}");
    assert!(said.contains("read-only, root is root, cached\n"), "{said}");
    let said = json(check(&["--json"]));
    assert_eq!(said["exports"][1]["cache"], "uncached");
    assert_eq!(said["limits"]["delegations"], 8192);
    setup.write("delegations = false\n[limits]\nopens = 1000\nreply_bytes = \"1G\"", &[("a", "")]);
    let said = json(check(&["--json"]));
    assert_eq!(said["limits"]["opens"], 1000);
    assert_eq!(said["limits"]["delegations"], 0, "they are off");
    assert!(run(check(&[])).contains("          reply_bytes 1.00 GiB\n"));
    assert!(!setup.path("state").exists(), "nothing was begun");

    setup.write("", &[("a", ""), ("gone", "")]);
    let said = fail(1, check(&[]));
    assert!(said.contains("weir.toml:11:8: ") && said.contains("create the directory"), "{said}");
    // The command line and the file must not both set the same key.
    let both = weir(check(&["--read-only"])).output().unwrap();
    assert_eq!(both.status.code(), Some(2), "{}", text(&both));
    assert_eq!(weir(["serve"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn a_reload_applies_changes_and_names_those_that_need_a_restart() {
    let setup = Setup::new();
    setup.write("budget = \"64M\"\nlease = 60", &[("a", ""), ("b", "")]);
    let server = setup.start();
    assert_eq!(names(&server, ""), ["a", "b"]);
    assert_eq!(names(&server, "a"), ["in-a"]);
    assert_eq!(run(["cat", &server.url("b/in-b", "vers=3")]), "b");

    // One export added, one removed, one changed; and everything else at once.
    setup.write(
        "budget = \"32M\"\nlease = 90\nthreads = 3\nversions = [4.2]",
        &[("c", ""), ("a", "read_only = true")],
    );
    let log = setup.reload(&server, "/b: export removed");
    for said in [
        "/c: export added",
        "/a: export options changed",
        "budget changed to 32.00 MiB",
        "lease changed to 90s",
        "`threads` changes when the server restarts",
        "`versions` changes when the server restarts",
    ] {
        assert!(log.contains(said), "{said}: {log}");
    }
    assert_eq!(names(&server, ""), ["a", "c"]);
    assert_eq!(run(["cat", &server.url("c/in-c", "vers=3")]), "c", "still offered");
    let said = fail(1, ["touch", &server.url("a/new", "vers=4.2")]);
    assert!(said.contains("read-only"), "{said}");
    fail(1, ["ls", &server.url("b", "vers=4.2")]);
    within(PATIENCE, || (!holds(&server, &setup.path("b"))).then_some(()));
    assert!(holds(&server, &setup.path("a")));

    // And back.
    setup.write("budget = \"32M\"\nlease = 60", &[("a", ""), ("b", "")]);
    let log = setup.reload(&server, "/b: export added");
    assert!(log.contains("`lease` stays 90s until the server restarts"), "{log}");
    assert_eq!(run(["cat", &server.url("b/in-b", "vers=4.1")]), "b");
    run(["touch", &server.url("a/new", "vers=4.2")]);
}

#[test]
fn a_reload_warns_as_a_start_does() {
    let setup = Setup::new();
    let beyond = |setup: &Setup| {
        let text = fs::read_to_string(setup.config()).unwrap();
        fs::write(setup.config(), text.replace("127.0.0.1:0", "0.0.0.0:0")).unwrap();
    };
    let local = "clients = [\"127.0.0.0/8\"]";
    setup.write("", &[("a", local)]);
    beyond(&setup);
    let server = setup.start();
    let log = setup.logged("");
    assert!(!log.contains("WARN"), "{log}");
    setup.write("secure = false", &[("a", "durability = \"relaxed\"")]);
    beyond(&setup);
    let log = setup.reload(&server, "durability is relaxed in /a");
    assert!(log.contains("listening beyond loopback without `secure`"), "{log}");
    // All of them, the directory of the state included.
    setup.write("", &[("", &format!("{local}\ndurability = \"relaxed\""))]);
    beyond(&setup);
    let log = setup.reload(&server, "durability is relaxed in /");
    assert!(log.contains("clients can read the key"), "{log}");
    assert!(!log.contains("listening beyond loopback"), "{log}");
}

#[test]
fn a_bad_file_changes_nothing() {
    let setup = Setup::new();
    setup.write("", &[("a", "")]);
    let mut server = setup.start();
    for (server_part, exports, said) in [
        (
            "budgt = 1",
            vec![("a", "")],
            "weir.toml:4:1: unknown key `budgt`; did you mean `budget`?",
        ),
        (
            "",
            vec![("b", ""), ("a", "cache = \"cachd\"")],
            "weir.toml:14:9: unknown value `cachd`; did you mean `cached`?",
        ),
        ("", vec![("b", ""), ("gone", "")], "weir.toml:11:8: "),
        ("[", vec![], "weir.toml:4:"),
    ] {
        setup.write(server_part, &exports);
        let log = setup.reload(&server, "keeping the previous configuration");
        assert!(log.contains(said), "{said}: {log}");
        assert_eq!(names(&server, ""), ["a"]);
        assert_eq!(names(&server, "a"), ["in-a"]);
    }
    fs::remove_file(setup.config()).unwrap();
    setup.reload(&server, "cannot read the configuration");
    assert_eq!(names(&server, ""), ["a"]);
    server.signal(Signal::TERM);
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn sighup_without_a_file_changes_nothing() {
    let setup = Setup::new();
    let mut command = weir(["serve", "--json", "--bind", "127.0.0.1:0", "--state-dir"]);
    command.arg(setup.path("state")).arg(setup.path("a"));
    command.stderr(fs::File::create(setup.path("log")).unwrap());
    let server = Server::spawn(command);
    setup.reload(&server, "ignoring SIGHUP: the server has no configuration file");
    assert_eq!(names(&server, ""), ["in-a"]);
}

#[test]
fn every_address_is_served() {
    let setup = Setup::new();
    setup.write("", &[("a", "")]);
    let config = fs::read_to_string(setup.config()).unwrap();
    let several = config.replace("\"127.0.0.1:0\"", "[\"127.0.0.1:0\", \"127.0.0.2:0\"]");
    fs::write(setup.config(), several).unwrap();
    let server = setup.start();
    let addresses = server.said["addresses"].as_array().unwrap();
    assert_eq!(addresses.len(), 2);
    for address in addresses {
        let url = format!("nfs://{}/a/in-a?vers=4.2", address.as_str().unwrap());
        assert_eq!(run(["cat", &url]), "a");
    }
}

#[test]
fn all_of_ipv4_and_all_of_ipv6_at_one_port() {
    let Ok(free) = std::net::TcpListener::bind("[::]:0") else {
        weir_skip::skip("no IPv6 here");
        return;
    };
    let port = free.local_addr().unwrap().port();
    drop(free);
    let setup = Setup::new();
    setup.write("", &[("a", "")]);
    let config = fs::read_to_string(setup.config()).unwrap();
    let both = format!("[\"0.0.0.0:{port}\", \"[::]:{port}\"]");
    fs::write(setup.config(), config.replace("\"127.0.0.1:0\"", &both)).unwrap();
    let mut server = setup.start();
    for host in ["127.0.0.1", "[::1]"] {
        let url = format!("nfs://{host}:{port}/a/in-a?vers=4.2");
        assert_eq!(run(["cat", &url]), "a");
    }
    server.signal(Signal::TERM);
    assert_eq!(server.ended(), Some(0));
    let log = fs::read_to_string(setup.path("log")).unwrap();
    assert!(!log.contains("in use"), "{log}");
}

#[test]
fn only_the_configured_versions_are_offered() {
    let setup = Setup::new();
    for (versions, offered) in [("[4.1]", ["4.1"]), ("\"3\"", ["3"])] {
        setup.write(&format!("versions = {versions}"), &[("a", "")]);
        let server = setup.start();
        for vers in ["3", "4.0", "4.1", "4.2"] {
            let url = server.url("a/in-a", &format!("vers={vers}&soft&timeo=600"));
            let output = weir(["cat", &url]).output().unwrap();
            assert_eq!(output.status.success(), offered.contains(&vers), "{vers} of {versions}");
        }
    }
}
