//! `weir chmod`, locally and at a server.

mod common;

use common::{Server, fail, json, run, scratch};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn modes_of_files_and_trees() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir_all(export.join("tree/sub")).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let local = |path: &str| export.join(path).to_str().unwrap().to_owned();
    let targets: [&dyn Fn(&str) -> String; 3] =
        [&local, &|path: &str| server.url(path, "vers=3"), &|path: &str| {
            server.url(path, "vers=4.2")
        }];
    for at in targets {
        for file in ["file", "outside", "tree/sub/program"] {
            fs::write(export.join(file), "").unwrap();
            fs::set_permissions(export.join(file), fs::Permissions::from_mode(0o600)).unwrap();
        }
        fs::set_permissions(export.join("tree/sub/program"), fs::Permissions::from_mode(0o700))
            .unwrap();
        symlink("../outside", export.join("tree/link")).unwrap();
        run(["chmod", "640", &at("file")]);
        assert_eq!(mode(&export.join("file")), 0o640);
        run(["chmod", "u+x,g-r", &at("file")]);
        assert_eq!(mode(&export.join("file")), 0o700);
        let said = run(["chmod", "-Rv", "a=rX", &at("tree")]);
        assert_eq!(said.lines().count(), 3, "{said}");
        assert_eq!(mode(&export.join("tree")), 0o555);
        assert_eq!(mode(&export.join("tree/sub/program")), 0o555);
        assert_eq!(mode(&export.join("outside")), 0o600, "a link's target");
        run(["chmod", "-R", "-w,u+w", &at("tree")]);
        let report = json(["chmod", "--json", "600", &at("file")]);
        assert_eq!(report["changed"].as_array().unwrap().len(), 1);
        fs::remove_file(export.join("tree/link")).unwrap();
        let says = fail(1, ["chmod", "600", &at("missing"), &at("outside")]);
        assert!(says.contains("no such file"), "{says}");
    }
    assert!(fail(2, ["chmod", "rw", "x"]).contains("write it like 640, u+x"));
}
