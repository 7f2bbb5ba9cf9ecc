//! libnfs's own tools (NFSv3 and MOUNT on one port) against `weir serve`.

use conformance::{Server, program, scratch, skip};
use std::process::Command;

#[test]
fn libnfs_tools_list_read_and_write() {
    let (Some(ls), Some(cat), Some(cp)) =
        (program("nfs-ls"), program("nfs-cat"), program("nfs-cp"))
    else {
        return skip("nfs-ls, nfs-cat and nfs-cp (libnfs-utils) are not installed");
    };
    let dir = scratch();
    let export = dir.path().join("export");
    std::fs::create_dir_all(export.join("sub")).unwrap();
    let bytes: Vec<u8> = (0..3_000_000u32).flat_map(|i| [(i % 253) as u8]).collect();
    std::fs::write(export.join("sub/file"), &bytes).unwrap();
    let server = Server::start(&export);
    let url = |path: &str| {
        format!("nfs://127.0.0.1/{path}?nfsport={port}&mountport={port}", port = server.port)
    };
    let run = |program: &std::path::Path, args: &[&str]| {
        let output = Command::new(program).args(args).output().unwrap();
        assert!(output.status.success(), "{program:?} {args:?}: {output:?}");
        output.stdout
    };

    let listing = String::from_utf8(run(&ls, &[&url("sub")])).unwrap();
    assert!(listing.contains("3000000") && listing.contains("file"), "{listing}");
    assert_eq!(run(&cat, &[&url("sub/file")]), bytes);

    // A file in the export's root: libnfs mounts the empty path. (By default it also looks for nested
    // mounts, and fails on an empty path.)
    std::fs::write(export.join("top"), &bytes[..5000]).unwrap();
    for top in [format!("{}&auto-traverse-mounts=0", url("top")), url("/top")] {
        assert_eq!(run(&cat, &[&top]), &bytes[..5000], "{top}");
    }

    let local = dir.path().join("local");
    std::fs::write(&local, &bytes[..1_234_567]).unwrap();
    run(&cp, &[local.to_str().unwrap(), &url("sub/copy")]);
    assert_eq!(std::fs::read(export.join("sub/copy")).unwrap(), &bytes[..1_234_567]);
}
