//! pjdfstest through the Linux client: a test may fail only if it fails on the exported file system, too,
//! or is listed with a reason in `conformance/pjdfstest.skip`.

use conformance::{Guest, program, scratch, serve_command, skip, workspace};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

#[test]
fn pjdfstest_fails_only_where_the_local_file_system_does() {
    let Some(suite) = program("pjdfstest") else {
        return skip("pjdfstest is not installed (cargo install pjdfstest)");
    };
    let Some(guest) = Guest::find() else { return };
    let config = workspace().join("conformance/pjdfstest.toml");
    let dir = scratch();
    open_to_all(dir.path());
    let on_disk = native(&suite, &config);

    for vers in ["3", "4.2"] {
        let export = dir.path().join(format!("export-{vers}"));
        std::fs::create_dir(&export).unwrap();
        open_to_all(&export);
        let args = [vers, suite.to_str().unwrap(), config.to_str().unwrap()];
        let text = guest.run(&serve_command(&export, ""), &[], "pjdfstest.sh", &args);
        let Verdicts { failed, passed } = Verdicts::of(&text);
        assert!(passed > 300, "{text}");
        let excused = excused(vers);
        let new: Vec<_> =
            failed.difference(&on_disk.failed).filter(|t| !excused.contains(*t)).collect();
        assert!(new.is_empty(), "vers={vers}: {new:#?}");
        let mended: Vec<_> = excused.difference(&failed).collect();
        assert!(mended.is_empty(), "vers={vers}: take off conformance/pjdfstest.skip: {mended:#?}");
    }
}

/// Opens a directory to all users.
pub(crate) fn open_to_all(dir: &Path) {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The result on the file system below.
pub(crate) fn native(suite: &Path, config: &Path) -> Verdicts {
    let dir = scratch();
    open_to_all(dir.path());
    let ran = Command::new(suite).arg("-c").arg(config).arg("-p").arg(dir.path()).output();
    let native = Verdicts::of(&String::from_utf8(ran.unwrap().stdout).unwrap());
    assert!(native.passed > 300, "pjdfstest passed {} tests natively", native.passed);
    native
}

/// The result of a run.
pub(crate) struct Verdicts {
    /// The names of the failed tests.
    pub(crate) failed: BTreeSet<String>,
    /// How many passed.
    pub(crate) passed: usize,
}

impl Verdicts {
    /// The result that the suite printed.
    pub(crate) fn of(text: &str) -> Self {
        let mut verdicts = Self { failed: BTreeSet::new(), passed: 0 };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some(_), Some("ok")) => verdicts.passed += 1,
                (Some(test), Some("FAILED")) => _ = verdicts.failed.insert(test.to_owned()),
                _ => {}
            }
        }
        verdicts
    }
}

fn excused(vers: &str) -> BTreeSet<String> {
    let list = std::fs::read_to_string(workspace().join("conformance/pjdfstest.skip")).unwrap();
    list.lines()
        .filter(|l| !l.starts_with('#') && !l.trim().is_empty())
        .filter_map(|l| {
            let mut words = l.splitn(3, ' ');
            let (version, test, reason) = (words.next()?, words.next()?, words.next());
            assert!(reason.is_some_and(|r| !r.trim().is_empty()), "no reason: {l}");
            (version == "*" || version == vers).then(|| test.to_owned())
        })
        .collect()
}
