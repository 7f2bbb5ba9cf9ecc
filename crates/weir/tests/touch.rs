//! `weir touch` of local files.

mod common;

use common::{run, scratch};
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
