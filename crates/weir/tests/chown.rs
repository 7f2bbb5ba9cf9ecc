//! `weir chown`, locally and at a server.

mod common;

use common::{Server, fail, run, scratch};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

#[test]
fn owners_of_files_and_trees() {
    if !rustix::process::geteuid().is_root() {
        weir_skip::skip("only root may give files away");
        return;
    }
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir_all(export.join("tree")).unwrap();
    fs::write(export.join("tree/file"), "").unwrap();
    fs::write(export.join("outside"), "").unwrap();
    symlink("../outside", export.join("tree/link")).unwrap();
    let owner = |path: &str| {
        let found = fs::symlink_metadata(export.join(path)).unwrap();
        (found.uid(), found.gid())
    };
    let server = Server::start(&export, &["--squash", "none"]);
    let local = |path: &str| export.join(path).to_str().unwrap().to_owned();
    let targets: [&dyn Fn(&str) -> String; 3] =
        [&local, &|path: &str| server.url(path, "vers=3"), &|path: &str| {
            server.url(path, "vers=4.2")
        }];
    for at in targets {
        run(["chown", "1234:5678", &at("tree/file")]);
        assert_eq!(owner("tree/file"), (1234, 5678));
        run(["chown", ":7", &at("tree/file")]);
        assert_eq!(owner("tree/file"), (1234, 7));
        run(["chown", "-R", "root:0", &at("tree")]);
        assert_eq!((owner("tree/file"), owner("tree")), ((0, 0), (0, 0)));
        run(["chown", "-R", "9", &at("tree")]);
        assert_eq!((owner("tree/link").0, owner("outside").0), (9, 0), "the link itself");
        run(["chown", "-R", "0", &at("tree")]);
    }
    assert!(fail(2, ["chown", "no such user", "x"]).contains("there is no user"));
    assert!(fail(1, ["chown", "0", &local("missing")]).contains("no such file"));
}
