//! `weir exports`: what a server exports.

mod common;

use common::{Server, fail, json, run, scratch};
use std::fs;

#[test]
fn exports_and_who_may_mount_them() {
    let dir = scratch();
    let export = dir.path().join("export");
    fs::create_dir(&export).unwrap();
    let server = Server::start(&export, &["--squash", "none"]);
    let url = server.url("", "x").replace("&x", "");
    let said = run(["exports", &url]);
    let listed = json(["exports", "--json", &url]);
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), said.lines().count());
    assert!(!listed.is_empty());
    for export in listed {
        let path = export["path"].as_str().unwrap();
        assert!(said.contains(path) && path.starts_with('/'), "{said}");
        assert_eq!(export["server"], "127.0.0.1");
    }
    assert!(fail(1, ["exports", "."]).contains("name a server"));
    let gone = "nfs://127.0.0.1:1/?soft,retrans=0,timeo=10";
    assert!(fail(1, ["exports", gone]).contains("cannot list the exports"));
}
