//! `weir touch` of local files.

mod common;

use common::{Server, fail, run, scratch, text, weir};
use std::fs::{self, File};
use std::time::{Duration, SystemTime};

#[test]
fn files_are_made_and_times_set() {
    let dir = scratch();
    let (new, old) = (dir.path().join("new"), dir.path().join("old"));
    fs::write(&old, "kept").unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(1 << 20);
    File::options().write(true).open(&old).unwrap().set_modified(long_ago).unwrap();
    run(["touch".as_ref(), new.as_os_str(), old.as_os_str()]);
    assert_eq!(new.metadata().unwrap().len(), 0);
    assert_eq!(fs::read(&old).unwrap(), b"kept");
    assert!(old.metadata().unwrap().modified().unwrap() > long_ago + Duration::from_secs(1000));
    run(["touch".as_ref(), "-c".as_ref(), dir.path().join("none").as_os_str()]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn the_times_asked_for() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let file = export.join("file");
    let server = Server::start(&export, &["--squash", "none"]);
    let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let times = || {
        let found = fs::metadata(&file).unwrap();
        (found.accessed().unwrap(), found.modified().unwrap())
    };
    let local = file.to_str().unwrap().to_owned();
    for url in [local.clone(), server.url("file", "vers=3"), server.url("file", "vers=4.2")] {
        run(["touch", "-d", "2026-11-21T14:30:00Z", &url]);
        assert_eq!(times(), (at(1_795_271_400), at(1_795_271_400)), "{url}");
        run(["touch", "-a", "-d", "@1000", &url]);
        run(["touch", "-m", "-d", "@2000", &url]);
        assert_eq!(times(), (at(1000), at(2000)), "{url}");
        let other = export.join("other");
        fs::write(&other, "").unwrap();
        run(["touch", "-r", &url, other.to_str().unwrap()]);
        assert_eq!(fs::metadata(&other).unwrap().modified().unwrap(), at(2000));
        // Times of version 3 begin in 1970 and end in 2106; of a file system, they may end in 2038.
        for date in ["1960-01-01T00:00:00Z", "2200-01-01T00:00:00Z"] {
            let output = weir(["touch", "-m", "-d", date, &url]).output().unwrap();
            let asked = match &date[..4] {
                "1960" => SystemTime::UNIX_EPOCH - Duration::from_secs(315_619_200),
                _ => at(7_258_118_400),
            };
            let is_kept = times().1 == asked;
            assert_eq!(output.status.code(), Some(i32::from(!is_kept)), "{url} {date}");
            assert_eq!(text(&output).contains("in place of"), !is_kept, "{}", text(&output));
            assert!(!is_kept || !url.contains("vers=3"));
        }
        fs::remove_file(&file).unwrap();
    }
    assert!(fail(2, ["touch", "-d", "soon", &local]).contains("write it like 2026-11-21"));
    assert!(!file.exists());
}
