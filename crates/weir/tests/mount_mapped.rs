//! `weir mount`: what is found of files that programs have mapped.

mod common;

use common::mount::{Mount, source};
use common::text;
use rustix::fs::{SeekFrom, seek};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

/// As databases do: it stores to a mapping of a sparse file, and keeps it.
const STORES: &str = "
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 1 << 20)
mapped = mmap.mmap(file, 1 << 20)
mapped[1 << 19] = 7
os.close(file)
print('stored', flush=True)
sys.stdin.read()
";

#[test]
fn what_is_stored_through_a_mapping_is_no_hole() {
    if Command::new("python3").arg("-V").output().is_err() {
        return weir_skip::skip("python3 is not installed");
    }
    let (near, source) = source();
    for cache in ["weir", "kernel"] {
        let options = ["--cache", cache];
        let Some(mount) = Mount::start(near.path(), cache, &options, source.to_str().unwrap())
        else {
            return;
        };
        let path = mount.path(cache);
        let mut command = Command::new("python3");
        command.args(["-c", STORES]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        if said.is_empty() {
            let why = text(&child.wait_with_output().unwrap());
            // Linux before 6.6 maps no file whose pages it does not keep.
            assert!(why.contains("No such device"), "{why}");
            weir_skip::skip(why);
            continue;
        }
        let file = File::open(&path).unwrap();
        assert!(file.metadata().unwrap().blocks() > 0);
        assert_eq!(seek(&file, SeekFrom::Data(0)).unwrap(), 1 << 19, "--cache {cache}");
        let copy = mount.path("copy");
        assert!(Command::new("cp").arg(&path).arg(&copy).status().unwrap().success());
        let copy = fs::read(copy).unwrap();
        assert_eq!((copy.len(), copy[1 << 19]), (1 << 20, 7));
        // The end of its input ends it.
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}
