//! Weir's client with other servers, in every version: copies a tree there and back, and compares it
//! byte for byte.

use conformance::{Guest, program, scratch, skip, weir};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

const VERSIONS: [&str; 4] = ["3", "4.0", "4.1", "4.2"];

#[test]
fn trees_round_trip_through_ganesha() {
    for needed in ["ganesha.nfsd", "rpcbind", "unshare", "ip"] {
        if program(needed).is_none() {
            return skip(format!("nfs-ganesha as a peer needs {needed}"));
        }
    }
    if !Command::new("unshare").args(["-mn", "true"]).status().is_ok_and(|s| s.success()) {
        return skip("nfs-ganesha as a peer needs root, for a network of its own");
    }
    let dir = scratch();
    let files = tree(dir.path());
    let script = conformance::workspace().join("conformance/guest/ganesha.sh");
    let output = Command::new("unshare")
        .args(["-mn", "bash"])
        .arg(script)
        .args([weir(), &files, dir.path()])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    for version in VERSIONS {
        equal(&files, &dir.path().join("export").join(version));
        equal(&files, &dir.path().join(version));
    }
}

#[test]
fn trees_round_trip_through_knfsd() {
    let Some(guest) = Guest::find() else { return };
    for needed in ["exportfs", "rpcbind", "mkfs.ext4"] {
        if program(needed).is_none() {
            return skip(format!("the kernel's server needs {needed}"));
        }
    }
    let dir = scratch();
    let files = tree(dir.path());
    let image = dir.path().join("disk.img");
    File::create(&image).unwrap().set_len(512 << 20).unwrap();
    let mkfs = Command::new(program("mkfs.ext4").unwrap()).args(["-q", "-F"]).arg(&image).status();
    assert!(mkfs.unwrap().success());
    let out = dir.path().join("out");
    let client = format!(
        "while [[ ! -e {out}.ready ]]; do sleep 0.2; done; set -e; trap 'touch {out}.done' EXIT; \
         for v in {versions}; do at=nfs://192.0.2.2; [[ $v != 3 ]] || at+=/run/exp; \
         {weir} cp -rp -o vers=$v {files} $at/$v; {weir} cp -rp -o vers=$v $at/$v {out}.$v; done; \
         echo ok >{out}.status",
        out = out.display(),
        weir = weir().display(),
        files = files.display(),
        versions = VERSIONS.join(" "),
    );
    let harness = guest.harness().to_str().unwrap();
    let args = [harness, files.to_str().unwrap(), out.to_str().unwrap()];
    let text = guest.run(&client, &["--disk", image.to_str().unwrap()], "knfsd.sh", &args);
    assert!(dir.path().join("out.status").exists(), "{text}");
    for version in VERSIONS {
        equal(&files, &dir.path().join(format!("out.{version}")));
    }
}

/// Files of many sizes, holes, links, an odd name.
fn tree(dir: &Path) -> std::path::PathBuf {
    let files = dir.join("files");
    std::fs::create_dir_all(files.join("sub/deeper")).unwrap();
    for len in [0, 1, 4095, 4096, 4097, 65_536, 1_048_577, 3_000_000] {
        let bytes: Vec<u8> =
            (0..len).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(files.join(format!("sub/{len}")), bytes).unwrap();
    }
    let sparse = File::create(files.join("sparse")).unwrap();
    sparse.set_len(20 << 20).unwrap();
    for at in [5 << 20, (5 << 20) + 8192, (13 << 20) + 77] {
        sparse.write_all_at(b"neither here nor there", at).unwrap();
    }
    std::fs::write(files.join("sub/deeper/ä name with spaces"), "x").unwrap();
    std::os::unix::fs::symlink("sub/4097", files.join("link")).unwrap();
    files
}

fn equal(one: &Path, other: &Path) {
    let diff = Command::new("diff").args(["-r", "--no-dereference"]).args([one, other]).output();
    let diff = diff.unwrap();
    assert!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
}
