//! `weir mount` below programs that know what a file system owes them: pjdfstest, fsx, SQLite, git, tar.
//!
//! `WEIR_LONG=1` runs a million operations of fsx in each way.

use crate::pjdfstest::{Verdicts, native, open_to_all};
use conformance::mount::Mount;
use conformance::{Server, program, scratch, skip, text_of, workspace};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A source to mount: a local directory, or a server of it.
struct Source {
    dir: tempfile::TempDir,
    export: PathBuf,
    server: Option<Server>,
}

impl Source {
    fn new(served: bool) -> Self {
        let dir = scratch();
        let export = dir.path().canonicalize().unwrap().join("source");
        fs::create_dir(&export).unwrap();
        open_to_all(dir.path());
        open_to_all(&export);
        // The locks of a killed client end with its lease.
        let server = served.then(|| Server::with(&export, &["--lease", "10", "--log", "warn"]));
        Self { dir, export, server }
    }

    /// What to mount; `options` are those of the client.
    fn name(&self, options: &str) -> String {
        match &self.server {
            None => self.export.to_str().unwrap().to_owned(),
            Some(Server { port, .. }) => {
                format!("nfs://127.0.0.1:{port}/?mountport={port}&{options}")
            }
        }
    }

    #[track_caller]
    fn mount(&self, client: &str, options: &[&str]) -> Option<Mount> {
        let dir = self.dir.path().canonicalize().unwrap().join("mnt");
        Mount::start(&self.name(client), &dir, options)
    }
}

/// The ways of mounting: what is served, the client's options, the mount's options.
const WAYS: [(&str, bool, &str, &[&str]); 6] = [
    ("local", false, "", &["--budget", "64M"]),
    ("local-kernel", false, "", &["--budget", "64M", "--cache", "kernel"]),
    ("local-uncached", false, "", &["--budget", "64M", "--uncached"]),
    ("nfs-4.2", true, "vers=4.2", &["--budget", "64M"]),
    ("nfs-4.2-kernel", true, "vers=4.2", &["--budget", "64M", "--cache", "kernel"]),
    ("nfs-3", true, "vers=3", &["--budget", "64M"]),
];

#[test]
fn fsx_finds_no_difference_on_a_mount() {
    let Some(fsx) = program("fsx") else { return skip("fsx is not installed (cargo install fsx)") };
    let long = std::env::var_os("WEIR_LONG").is_some_and(|v| !v.is_empty());
    let operations = if long { "1000000" } else { "10000" };
    for (way, served, client, options) in WAYS {
        let source = Source::new(served);
        let Some(mount) = source.mount(client, options) else { return };
        let file = mount.dir().join("fsx");
        let ran =
            Command::new(&fsx).args(["-N", operations, "-S", "7"]).arg(&file).output().unwrap();
        assert!(ran.status.success(), "{way}: {}", text_of(&ran));
        assert!(mount.end().success(), "{way}");
    }
}

#[test]
fn pjdfstest_fails_on_a_mount_only_where_the_source_does() {
    let Some(suite) = program("pjdfstest") else {
        return skip("pjdfstest is not installed (cargo install pjdfstest)");
    };
    if !conformance::is_root("pjdfstest acts as several users") {
        return;
    }
    let config = workspace().join("conformance/pjdfstest.toml");
    let on_disk = native(&suite, &config);
    for (way, served, client) in
        [("local", false, ""), ("nfs-4.2", true, "vers=4.2"), ("nfs-3", true, "vers=3")]
    {
        let source = Source::new(served);
        let Some(mount) = source.mount(client, &["--allow-other", "--budget", "64M"]) else {
            return;
        };
        let below = mount.dir().join("pjd");
        fs::create_dir(&below).unwrap();
        open_to_all(&below);
        let ran =
            Command::new(&suite).arg("-c").arg(&config).arg("-p").arg(&below).output().unwrap();
        let verdicts = Verdicts::of(&text_of(&ran));
        assert!(verdicts.passed > 300, "{way}: {}", text_of(&ran));
        let excused = excused(way);
        let new: Vec<_> = verdicts
            .failed
            .difference(&on_disk.failed)
            .filter(|test| !excused.contains(*test))
            .collect();
        assert!(new.is_empty(), "{way}: {new:#?}");
        let mended: Vec<_> = excused.difference(&verdicts.failed).collect();
        assert!(mended.is_empty(), "{way}: take off conformance/pjdfstest.mount.skip: {mended:#?}");
    }
}

/// The tests that may fail, each with a reason.
fn excused(way: &str) -> BTreeSet<String> {
    let list = fs::read_to_string(workspace().join("conformance/pjdfstest.mount.skip")).unwrap();
    let lines = list.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .filter_map(|line| {
            let mut words = line.splitn(3, ' ');
            let (of, test, reason) = (words.next()?, words.next()?, words.next());
            assert!(reason.is_some_and(|reason| !reason.trim().is_empty()), "no reason: {line}");
            (of == "*" || of == way).then(|| test.to_owned())
        })
        .collect()
}

#[test]
fn a_database_survives_kills_of_its_program_and_of_the_mount() {
    if program("python3").is_none() {
        return skip("python3 is not installed");
    }
    for (way, served, client, options) in [WAYS[0], WAYS[1], WAYS[3]] {
        let source = Source::new(served);
        let acknowledged = source.dir.path().join("acknowledged");
        for round in 0..4 {
            let Some(mount) = source.mount(client, options) else { return };
            let mut writer = Command::new("python3")
                .args(["-c", WRITER])
                .arg(mount.dir().join("db"))
                .arg(&acknowledged)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            commits(&mut writer, &acknowledged, 2);
            // In turn the program and the file system are killed.
            if round % 2 == 0 {
                writer.kill().unwrap();
                writer.wait().unwrap();
                assert!(mount.end().success(), "{way}");
            } else {
                mount.kill();
                let _ = writer.kill();
                writer.wait().unwrap();
            }
            let Some(mount) = source.mount(client, options) else { return };
            let checked = Command::new("python3")
                .args(["-c", CHECKER])
                .arg(mount.dir().join("db"))
                .arg(&acknowledged)
                .output()
                .unwrap();
            assert!(checked.status.success(), "{way}, round {round}: {}", text_of(&checked));
        }
        let rows = fs::read_to_string(&acknowledged).unwrap().lines().count();
        assert!(rows > 4, "{way}: {rows} transactions");
    }
}

/// Waits until a program has noted `more` transactions as committed, beyond those noted before.
fn commits(program: &mut Child, acknowledged: &Path, more: usize) {
    let noted = || fs::read_to_string(acknowledged).unwrap_or_default().lines().count();
    let (before, since) = (noted(), Instant::now());
    while noted() < before + more {
        let ended = program.try_wait().unwrap();
        if ended.is_some() || since.elapsed() >= PATIENCE {
            // A program that goes on would keep the mount busy.
            let _ = program.kill();
            let _ = program.wait();
            let noted = noted() - before;
            panic!("{noted} of {more} transactions; the program's end: {ended:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How long a program has for its transactions on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Commits numbers one by one, and then notes each outside of the mount.
const WRITER: &str = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
db.execute('pragma synchronous=full')
db.execute('create table if not exists t (n integer primary key, pad blob)')
noted = open(sys.argv[2], 'a')
n = (db.execute('select max(n) from t').fetchone()[0] or 0) + 1
while True:
    db.execute('insert into t values (?, zeroblob(3000))', (n,))
    noted.write(f'{n}\\n'); noted.flush()
    n += 1
";

/// Every noted number is there, and the database is sound.
const CHECKER: &str = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60)
assert db.execute('pragma integrity_check').fetchone()[0] == 'ok'
there = {row[0] for row in db.execute('select n from t')}
lost = [n for n in map(int, open(sys.argv[2]).read().split()) if n not in there]
assert not lost, f'lost: {lost}'
";

/// PostgreSQL under load: its server is killed, then the mount.
#[test]
fn a_postgres_database_survives_kills_of_its_server_and_of_the_mount() {
    if ["pg_ctl", "psql", "setpriv"].iter().any(|needed| program(needed).is_none()) {
        return skip("PostgreSQL is not installed");
    }
    if !conformance::is_root("PostgreSQL runs as another user, and not as root") {
        return;
    }
    for (way, served, client, options) in [WAYS[0], WAYS[1], WAYS[3]] {
        let source = Source::new(served);
        let beside = source.dir.path().canonicalize().unwrap().join("beside");
        for dir in [&beside, &source.export.join("database")] {
            fs::create_dir(dir).unwrap();
            std::os::unix::fs::chown(dir, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let options: Vec<_> = ["--allow-other"].iter().chain(options).copied().collect();
        let Some(mut mount) = source.mount(client, &options) else { return };
        let database = mount.dir().join("database");
        let step = |step: &str| {
            let mut command = Command::new("setpriv");
            let user = NOBODY.to_string();
            command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "bash"]);
            command.arg(workspace().join("conformance/guest/postgres.sh"));
            command.arg(step).arg(&database).arg(&beside).current_dir("/");
            command
        };
        let run = |name: &str| {
            let ran = step(name).output().unwrap();
            assert!(ran.status.success(), "{way}, {name}: {}", text_of(&ran));
        };
        run("make");
        for round in 0..2 {
            let mut load = step("load").stderr(Stdio::null()).spawn().unwrap();
            commits(&mut load, &beside.join("acknowledged"), 20);
            if round == 0 {
                run("kill");
            } else {
                mount.kill();
                run("kill");
                mount = source.mount(client, &options).expect("it was mounted before");
            }
            load.wait().unwrap();
            run("start");
            if round == 1 {
                run("check");
            }
        }
        let noted = fs::read_to_string(beside.join("acknowledged")).unwrap().lines().count();
        assert!(noted > 4, "{way}: {noted} transactions");
        assert!(mount.end().success(), "{way}");
    }
}

/// A user and a group without rights.
const NOBODY: u32 = 65534;

#[test]
fn eight_jobs_of_fio_read_what_they_wrote() {
    let Some(fio) = program("fio") else { return skip("fio is not installed") };
    for (way, served, client, options) in WAYS {
        let source = Source::new(served);
        let Some(mount) = source.mount(client, options) else { return };
        for (engine, direct) in [("psync", "0"), ("psync", "1"), ("mmap", "0")] {
            let mut command = Command::new(&fio);
            command.args(["--name=verified", "--rw=randrw", "--numjobs=8", "--size=8m"]);
            command.args(["--bsrange=4k-128k", "--verify=crc32c", "--verify_fatal=1"]);
            command.args(["--do_verify=1", "--fsync=64", "--unlink=1", "--group_reporting"]);
            command.arg("--verify_state_save=0");
            command.arg(format!("--ioengine={engine}")).arg(format!("--direct={direct}"));
            command.arg("--directory").arg(mount.dir());
            let ran = command.output().unwrap();
            assert!(ran.status.success(), "{way}, {engine}, direct {direct}: {}", text_of(&ran));
            assert!(text_of(&ran).contains("err= 0"), "{way}: {}", text_of(&ran));
        }
        assert!(mount.end().success(), "{way}");
    }
}

#[test]
fn everyday_programs_work_on_a_mount() {
    for needed in ["git", "tar", "cmp", "find", "make"] {
        if program(needed).is_none() {
            return skip(format!("{needed} is not installed"));
        }
    }
    for (way, served, client, options) in WAYS {
        let source = Source::new(served);
        let Some(mount) = source.mount(client, options) else { return };
        let ran = Command::new("bash")
            .arg(workspace().join("conformance/guest/everyday.sh"))
            .arg(mount.dir())
            .arg(source.dir.path().join("beside"))
            .output()
            .unwrap();
        assert!(ran.status.success(), "{way}: {}", text_of(&ran));
        assert!(mount.end().success(), "{way}");
        assert!(is_same(&source.export, &source.dir.path().join("beside")), "{way}");
    }
}

/// Whether two trees hold the same.
fn is_same(one: &Path, other: &Path) -> bool {
    Command::new("diff")
        .arg("-r")
        .arg("--no-dereference")
        .args([one, other])
        .status()
        .unwrap()
        .success()
}
