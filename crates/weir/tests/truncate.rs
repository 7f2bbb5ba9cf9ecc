//! `weir truncate`, locally and at a server.

mod common;

use common::{Server, blocks, fail, run, scratch};
use std::fs;

#[test]
fn sizes_of_files() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let local = |path: &str| export.join(path).to_str().unwrap().to_owned();
    let targets: [&dyn Fn(&str) -> String; 3] =
        [&local, &|path: &str| server.url(path, "vers=3"), &|path: &str| {
            server.url(path, "vers=4.2")
        }];
    let size = || fs::metadata(export.join("file")).unwrap().len();
    for at in targets {
        run(["truncate", "-c", "-s", "1M", &at("file")]);
        assert!(!export.join("file").exists());
        let said = run(["truncate", "-v", "-s", "1G", &at("file")]);
        assert!(said.contains("has 1073741824 bytes"), "{said}");
        assert_eq!((size(), blocks(&export.join("file"))), (1 << 30, 0));
        run(["truncate", "-s", "+1K", &at("file")]);
        assert_eq!(size(), (1 << 30) + 1024);
        run(["truncate", "-s", "-2K", &at("file")]);
        assert_eq!(size(), (1 << 30) - 1024);
        run(["truncate", "-s", "<100", &at("file")]);
        assert_eq!(size(), 100);
        run(["truncate", "-s", "%1K", &at("file")]);
        assert_eq!(size(), 1024);
        let says = fail(1, ["truncate", "-s", "+8E", &at("file")]);
        assert!(says.contains("cannot set the size"), "{says}");
        assert_eq!(size(), 1024);
        fs::remove_file(export.join("file")).unwrap();
        assert!(fail(1, ["truncate", "-s", "0", &at("")]).contains("cannot set the size"));
    }
    assert!(fail(2, ["truncate", "x"]).contains("--size"));
}
