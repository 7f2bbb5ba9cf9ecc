//! Identities that clients keep: they refer to their file and no other, even if the log of names is
//! lost, another program moves the file, or its inode is reused.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use weir_stores::local::{LocalFs, LocalOptions};
use weir_vfs::{Caller, CreateMode, Error, FileId, FileSystem, ReaddirRequest, Result, SetAttr};

const OWN: Caller = Caller::Own;

fn temp_dir() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn open(dir: &Path, state: Option<&Path>, change: fn(&mut LocalOptions)) -> Arc<dyn FileSystem> {
    let state_dir = state.map(Path::to_path_buf);
    let mut options = LocalOptions { state_dir, ..LocalOptions::default() };
    change(&mut options);
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        match LocalFs::open(dir, options.clone()) {
            // A child of another test may hold the lock of a store that was dropped, until it execs.
            Err(busy) if busy.kind() == ErrorKind::ResourceBusy && Instant::now() < limit => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened.unwrap(),
        }
    }
}

async fn find(fs: &Arc<dyn FileSystem>, path: &str) -> FileId {
    let mut at = fs.root();
    for name in path.split('/') {
        at = fs.lookup(&OWN, at.entry(name.as_bytes())).await.unwrap().id;
    }
    at
}

/// Repeats a request while the answer is to retry.
async fn settled<T>(ask: impl AsyncFn() -> Result<T>) -> Result<T> {
    let limit = Instant::now() + Duration::from_secs(120);
    loop {
        match ask().await {
            Err(Error::WouldBlock) => {
                assert!(Instant::now() < limit, "it is still searched for");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            answer => return answer,
        }
    }
}

/// What a power failure may leave: a log without its newest records.
fn lose_power(state: &Path) {
    let log = fs::OpenOptions::new().write(true).open(state.join("nodes.log")).unwrap();
    log.set_len(32).unwrap();
    fs::write(state.join("nodes.state"), "of another boot of the machine\n").unwrap();
}

#[tokio::test]
async fn no_file_is_stale_after_a_power_failure_truncated_the_log() {
    let (dir, state) = (temp_dir(), temp_dir());
    let mut paths = Vec::new();
    for top in 0..10 {
        let deep = format!("d{top}/e/f");
        fs::create_dir_all(dir.path().join(&deep)).unwrap();
        paths.extend([format!("d{top}"), deep.clone()]);
        for name in 0..30 {
            let path = format!("{deep}/{name}");
            fs::write(dir.path().join(&path), &path).unwrap();
            paths.push(path);
        }
    }
    let store = open(dir.path(), Some(state.path()), |_| ());
    let mut ids = Vec::new();
    for path in &paths {
        ids.push(find(&store, path).await);
    }
    drop(store);
    lose_power(state.path());
    fs::remove_file(dir.path().join(&paths[2])).unwrap();
    // The last ones first, in steps so small that the search continues on its own thread.
    let store = open(dir.path(), Some(state.path()), |options| options.search_entries = 7);
    for (path, &id) in paths.iter().zip(&ids).rev() {
        let found = settled(async || store.getattr(id).await).await;
        if *path == paths[2] {
            assert_eq!(found.unwrap_err(), Error::Stale, "{path}");
        } else {
            assert_eq!(found.unwrap_or_else(|error| panic!("{path}: {error}")).id, id);
        }
    }
}

#[tokio::test]
async fn no_file_is_stale_because_the_table_was_full() {
    let dir = temp_dir();
    let paths: Vec<String> = (0..600).map(|i| format!("d{}/f{i}", i % 20)).collect();
    for path in &paths {
        fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
        fs::write(dir.path().join(path), "").unwrap();
    }
    let store = open(dir.path(), None, |options| {
        (options.max_nodes, options.search_entries) = (100, 50);
    });
    let mut ids = Vec::new();
    for path in &paths {
        ids.push(find(&store, path).await);
    }
    for (path, &id) in paths.iter().zip(&ids) {
        let found = settled(async || store.getattr(id).await).await;
        assert_eq!(found.unwrap_or_else(|error| panic!("{path}: {error}")).id, id);
    }
}

#[tokio::test]
async fn a_directory_moved_out_of_the_export_is_unreachable() {
    let dir = temp_dir();
    let (exported, outside) = (dir.path().join("exported"), dir.path().join("exported-not"));
    fs::create_dir_all(exported.join("d/below/deep")).unwrap();
    fs::create_dir_all(exported.join("other")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(exported.join("d/f"), "secret").unwrap();
    fs::write(exported.join("d/below/deep/f"), "secret").unwrap();
    let store = open(&exported, None, |_| ());
    let dirs = [
        find(&store, "d").await,
        find(&store, "d/below").await,
        find(&store, "d/below/deep").await,
    ];
    let files = [find(&store, "d/f").await, find(&store, "d/below/deep/f").await];
    // Within the tree it stays reachable.
    fs::rename(exported.join("d"), exported.join("other/moved")).unwrap();
    for id in dirs.iter().chain(&files) {
        assert_eq!(settled(async || store.getattr(*id).await).await.unwrap().id, *id);
    }
    fs::rename(exported.join("other/moved"), outside.join("d")).unwrap();
    for id in dirs {
        let stale = |result: Result<()>| assert_eq!(result, Err(Error::Stale));
        stale(settled(async || store.getattr(id).await.map(drop)).await);
        stale(settled(async || store.lookup(&OWN, id.entry(b"f")).await.map(drop)).await);
        stale(
            settled(async || {
                store
                    .readdir(
                        &OWN,
                        ReaddirRequest { dir: id, cookie: 0, max_entries: 10, with_attr: true },
                    )
                    .await
                    .map(drop)
            })
            .await,
        );
        let set = SetAttr::default();
        stale(
            settled(async || {
                store
                    .create(&OWN, id.entry(b"new").with(&set), CreateMode::MustBeNew)
                    .await
                    .map(drop)
            })
            .await,
        );
        stale(settled(async || store.setattr(&OWN, id, &set).await.map(drop)).await);
        stale(settled(async || store.parent(id).await.map(drop)).await);
    }
    for id in files {
        let found = settled(async || store.getattr(id).await).await;
        assert_eq!(found.unwrap_err(), Error::Stale);
    }
    assert!(!outside.join("d/new").exists());
}

/// A mounted file system on a loop device.
struct Mounted(TempDir);

impl Mounted {
    fn new(mkfs: &[&str]) -> Option<Self> {
        Self::sized(mkfs, 64 << 20)
    }

    fn sized(mkfs: &[&str], bytes: u64) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let dir = temp_dir();
        let image = dir.path().join("image");
        fs::File::create(&image).ok()?.set_len(bytes).ok()?;
        let run = |program: &str, args: &[&str]| {
            Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
        };
        let (image, at) = (image.to_str()?, dir.path().join("at"));
        fs::create_dir(&at).ok()?;
        let (program, args) = mkfs.split_first()?;
        let made = run(program, &[args, &[image]].concat());
        (made && run("mount", &["-o", "loop", image, at.to_str()?])).then(|| Self(dir))
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("at")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(self.path()).status());
    }
}

#[tokio::test]
async fn a_reused_inode_is_another_file_also_without_birth_times() {
    let Some(mounted) = Mounted::new(&["mkfs.ext4", "-q", "-F", "-I", "128"]) else {
        weir_skip::skip("takes root, mkfs.ext4 and loop devices");
        return;
    };
    let dir = mounted.path();
    let store = open(&dir, None, |_| ());
    assert!(store.getattr(store.root()).await.unwrap().btime.is_none());
    for round in 0..20 {
        let name = format!("f{round}");
        fs::write(dir.join(&name), "old").unwrap();
        let ino = fs::metadata(dir.join(&name)).unwrap().ino();
        let old = find(&store, &name).await;
        fs::remove_file(dir.join(&name)).unwrap();
        fs::write(dir.join(&name), "new").unwrap();
        if fs::metadata(dir.join(&name)).unwrap().ino() != ino {
            continue;
        }
        let found = settled(async || store.getattr(old).await).await;
        assert_eq!(found.map(|attr| attr.id), Err(Error::Stale), "before the new file is met");
        let new = find(&store, &name).await;
        assert_ne!(new, old);
        let found = settled(async || store.getattr(old).await).await;
        assert_eq!(found.map(|attr| attr.id), Err(Error::Stale));
        assert_eq!(store.getattr(new).await.unwrap().id, new);
        return;
    }
    panic!("no inode was used again");
}

/// For XFS, statfs(2) returns the device's number.
#[tokio::test]
async fn a_file_system_keeps_its_number_on_another_device() {
    for mkfs in [&["mkfs.xfs", "-q", "-f"][..], &["mkfs.ext4", "-q", "-F"]] {
        let Some(mounted) = Mounted::sized(mkfs, 300 << 20) else {
            weir_skip::skip(format!("takes root, {mkfs:?} and loop devices"));
            continue;
        };
        let other = Mounted::sized(mkfs, 300 << 20).unwrap();
        let device = |of: &Mounted| fs::metadata(of.path()).unwrap().dev();
        let fsid = async |of: &Mounted| {
            let store = open(&of.path(), None, |_| ());
            store.getattr(store.root()).await.unwrap().fsid
        };
        let (before, number) = (device(&mounted), fsid(&mounted).await);
        assert_ne!(fsid(&other).await, number, "{mkfs:?}: another file system");
        let mut in_its_place = Vec::new();
        while device(&mounted) == before {
            assert!(in_its_place.len() < 8, "{mkfs:?}: it is the same device each time");
            let limit = Instant::now() + Duration::from_secs(60);
            // A child of another test may hold a descriptor of the store that was dropped, until it execs.
            while !Command::new("umount").arg(mounted.path()).status().unwrap().success() {
                assert!(Instant::now() < limit, "{mkfs:?}: it stays busy");
                std::thread::sleep(Duration::from_millis(5));
            }
            in_its_place.extend(Mounted::new(&["mkfs.ext4", "-q", "-F"]));
            let image = mounted.0.path().join("image");
            let mount = ["-o".into(), "loop".into(), image, mounted.path()];
            assert!(Command::new("mount").args(mount).status().unwrap().success());
        }
        assert_eq!(fsid(&mounted).await, number, "{mkfs:?}");
    }
}
