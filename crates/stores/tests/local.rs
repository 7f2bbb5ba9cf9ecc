//! A local directory in particular: restarts, and other programs that change it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use weir_skip::is_root;
use weir_stores::local::{IoEngine, LocalFs, LocalOptions};
use weir_stores::testing::{bytes_of, new_file, read, read_all, write};
use weir_vfs::{
    Access, Acl, AclKind, AclWho, Caller, CreateMode, Cred, Error, FileId, FileKind, FileSystem,
    Permissions, ReaddirRequest, SegmentKind, SetAttr, SetTime,
};

const OWN: Caller = Caller::Own;

fn temp_dir() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn open(dir: &Path) -> Arc<dyn FileSystem> {
    LocalFs::open(dir, LocalOptions::default()).unwrap()
}

fn open_with_state(dir: &Path, state: &Path) -> Arc<dyn FileSystem> {
    let options = LocalOptions { state_dir: Some(state.to_path_buf()), ..LocalOptions::default() };
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

async fn find(fs: &Arc<dyn FileSystem>, dir: FileId, path: &str) -> FileId {
    let mut at = dir;
    for name in path.split('/') {
        at = fs.lookup(&OWN, at.entry(name.as_bytes())).await.unwrap().id;
    }
    at
}

async fn content(fs: &Arc<dyn FileSystem>, id: FileId) -> Vec<u8> {
    let file = fs.open(&OWN, id, Access::READ).await.unwrap();
    read_all(&*file, 1 << 16).await
}

const READ_WRITE: Permissions = Permissions::READ.union(Permissions::WRITE);

#[tokio::test]
async fn handles_outlive_the_program() {
    let (dir, state) = (temp_dir(), temp_dir());
    let fs = open_with_state(dir.path(), state.path());
    let mut ids = Vec::new();
    let mut at = fs.root();
    for depth in 0..10 {
        at = fs
            .mkdir(&OWN, at.entry(format!("d{depth}").as_bytes()).with(&SetAttr::default()))
            .await
            .unwrap()
            .id;
        let file = new_file(&fs, at, "f").await;
        write(&*file, 0, format!("{depth}").as_bytes()).await.unwrap();
        ids.push((depth, file.getattr().await.unwrap().id));
    }
    fs.rename(
        &OWN,
        find(&fs, fs.root(), "d0/d1").await.entry(b"d2"),
        fs.root().entry(b"moved"),
        Default::default(),
    )
    .await
    .unwrap();
    let gone = new_file(&fs, fs.root(), "gone").await.getattr().await.unwrap().id;
    fs.unlink(&OWN, fs.root().entry(b"gone")).await.unwrap();
    drop(fs);
    for state_is_kept in [true, false] {
        // Without the state, a search finds files.
        let fs = if state_is_kept {
            open_with_state(dir.path(), state.path())
        } else {
            open(dir.path())
        };
        for &(depth, id) in &ids {
            assert_eq!(fs.getattr(id).await.unwrap().id, id, "{depth}, {state_is_kept}");
            assert_eq!(content(&fs, id).await, format!("{depth}").as_bytes());
        }
        assert_eq!(fs.getattr(gone).await.unwrap_err(), Error::Stale);
    }
}

#[tokio::test]
async fn a_state_directory_serves_one_process() {
    let (dir, state) = (temp_dir(), temp_dir());
    let fs = open_with_state(dir.path(), state.path());
    let options =
        LocalOptions { state_dir: Some(state.path().to_path_buf()), ..LocalOptions::default() };
    let error = LocalFs::open(dir.path(), options).err().unwrap();
    assert!(error.to_string().contains("in use"), "{error}");
    drop(fs);
    open_with_state(dir.path(), state.path());
}

#[tokio::test]
async fn files_renamed_by_others_are_found_again() {
    for dir_fds in [None, Some(1)] {
        let dir = temp_dir();
        let root = dir.path();
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        fs::create_dir_all(root.join("z")).unwrap();
        fs::write(root.join("a/b/c/f"), "content").unwrap();
        let options = LocalOptions { dir_fds, ..LocalOptions::default() };
        let store: Arc<dyn FileSystem> = LocalFs::open(root, options).unwrap();
        let f = find(&store, store.root(), "a/b/c/f").await;
        let c = find(&store, store.root(), "a/b/c").await;
        find(&store, store.root(), "z").await;
        fs::rename(root.join("a/b/c/f"), root.join("a/g")).unwrap();
        assert_eq!(content(&store, f).await, b"content");
        fs::rename(root.join("a"), root.join("z/y")).unwrap();
        assert_eq!(content(&store, f).await, b"content");
        assert_eq!(store.getattr(c).await.unwrap().kind, FileKind::Directory);
        assert!(store.lookup(&OWN, c.entry(b"f")).await.is_err());
        fs::remove_file(root.join("z/y/g")).unwrap();
        assert_eq!(store.getattr(f).await.unwrap_err(), Error::Stale);
        fs::write(root.join("z/y/g"), "another").unwrap();
        assert_eq!(store.getattr(f).await.unwrap_err(), Error::Stale);
    }
}

#[tokio::test]
async fn symbolic_links_are_not_followed_out_of_the_export() {
    let (dir, outside) = (temp_dir(), temp_dir());
    let root = dir.path();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    fs::create_dir(root.join("sub")).unwrap();
    fs::write(root.join("sub/secret"), "harmless").unwrap();
    let options = LocalOptions { dir_fds: Some(1), ..LocalOptions::default() };
    let store: Arc<dyn FileSystem> = LocalFs::open(root, options).unwrap();
    let sub = find(&store, store.root(), "sub").await;
    let file = find(&store, store.root(), "sub/secret").await;
    fs::create_dir(root.join("other")).unwrap();
    // Evicts `sub` from the cache of one.
    let other = find(&store, store.root(), "other").await;
    assert!(store.lookup(&OWN, other.entry(b"x")).await.is_err());
    fs::rename(root.join("sub"), root.join("hidden")).unwrap();
    symlink(outside.path(), root.join("sub")).unwrap();

    let link = store.lookup(&OWN, store.root().entry(b"sub")).await.unwrap();
    assert_eq!(link.kind, FileKind::Symlink);
    assert!(store.lookup(&OWN, link.id.entry(b"secret")).await.is_err());
    assert!(
        store
            .create(&OWN, link.id.entry(b"planted").with(&SetAttr::default()), CreateMode::MayExist)
            .await
            .is_err()
    );
    assert_eq!(content(&store, file).await, b"harmless", "by its identity, not its old path");
    let again = store
        .create(&OWN, sub.entry(b"new").with(&SetAttr::default()), CreateMode::MayExist)
        .await
        .unwrap();
    assert!(again.created && root.join("hidden/new").exists());
    symlink(outside.path().join("secret"), root.join("direct")).unwrap();
    let direct = store.lookup(&OWN, store.root().entry(b"direct")).await.unwrap();
    assert_eq!(direct.kind, FileKind::Symlink);
    assert!(store.open(&OWN, direct.id, Access::READ).await.is_err());
    let made = store
        .create(&OWN, store.root().entry(b"direct").with(&SetAttr::default()), CreateMode::MayExist)
        .await;
    assert!(!made.unwrap().created, "an existing link is found, not written through");
    let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    assert!(store.setattr(&OWN, direct.id, &set).await.is_err());
    let mode = fs::metadata(outside.path().join("secret")).unwrap().permissions().mode();
    assert_ne!(mode & 0o777, 0o777);
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn changes_by_others_are_seen() {
    for io in [IoEngine::Auto, IoEngine::Threads] {
        let dir = temp_dir();
        let options = LocalOptions { io, ..LocalOptions::default() };
        let store: Arc<dyn FileSystem> = LocalFs::open(dir.path(), options).unwrap();
        let file = new_file(&store, store.root(), "f").await;
        file.set_size(64 << 20).await.unwrap();
        let before = file.getattr().await.unwrap().change;
        let (_, layout) = read(&*file, 0, 1 << 20).await.unwrap();
        assert_eq!(layout.extents[0].end, 64 << 20);
        let other = fs::File::options().write(true).open(dir.path().join("f")).unwrap();
        other.write_all_at(&[5; 8192], 40_960).unwrap();
        let (buffer, layout) = read(&*file, 0, 1 << 20).await.unwrap();
        assert_eq!(bytes_of(0, &buffer, &layout)[40_960..49_152], [5; 8192]);
        assert_ne!(file.getattr().await.unwrap().change, before);
        other.set_len(50_000).unwrap();
        let (_, layout) = read(&*file, 0, 1 << 20).await.unwrap();
        assert_eq!((layout.end(0), layout.eof), (50_000, true));
    }
}

/// Blocks are written while their surroundings are read: no written block is reported as a hole.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn no_hole_is_reported_where_data_was_written() {
    const BLOCK: u64 = 128 * 1024;
    const BLOCKS: u64 = 200;
    for (io, direct) in [(IoEngine::Auto, true), (IoEngine::Threads, true), (IoEngine::Auto, false)]
    {
        let dir = temp_dir();
        let options = LocalOptions { io, direct, ..LocalOptions::default() };
        let store: Arc<dyn FileSystem> = LocalFs::open(dir.path(), options).unwrap();
        let file = new_file(&store, store.root(), "f").await;
        file.set_size(2 * BLOCKS * BLOCK).await.unwrap();
        let written = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let writer = tokio::spawn({
            let (file, written) = (file.clone(), written.clone());
            async move {
                for i in 0..BLOCKS {
                    write(&*file, 2 * i * BLOCK, &[i as u8 + 1; BLOCK as usize]).await.unwrap();
                    written.store(i + 1, std::sync::atomic::Ordering::SeqCst);
                }
            }
        });
        let mut reads = 0;
        loop {
            let done = written.load(std::sync::atomic::Ordering::SeqCst);
            let from = (2 * done * BLOCK).saturating_sub(4 * BLOCK);
            let (buffer, layout) = read(&*file, from, 6 * BLOCK as usize).await.unwrap();
            let bytes = bytes_of(from, &buffer, &layout);
            for i in (from / BLOCK / 2)..done {
                let at = (2 * i * BLOCK).checked_sub(from);
                let Some(block) = at.and_then(|at| bytes.get(at as usize..(at + BLOCK) as usize))
                else {
                    continue;
                };
                assert!(block.iter().all(|&b| b == i as u8 + 1), "block {i} of {done} is lost");
            }
            reads += 1;
            if done == BLOCKS {
                break;
            }
        }
        writer.await.unwrap();
        let (_, layout) = read(&*file, 0, (2 * BLOCKS * BLOCK) as usize).await.unwrap();
        let holes = layout.extents.iter().filter(|e| e.kind == SegmentKind::Hole);
        assert_eq!(holes.map(|e| e.len()).sum::<u64>(), BLOCKS * BLOCK, "after {reads} reads");
    }
}

/// A bit that a program sets while the store clears set-user-ID stays set.
#[tokio::test]
async fn clearing_set_user_id_keeps_concurrent_changes_by_programs() {
    use std::os::unix::fs::PermissionsExt;
    let dir = temp_dir();
    let store = open(dir.path());
    let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    let id = store
        .create(&OWN, store.root().entry(b"file").with(&set), CreateMode::MustBeNew)
        .await
        .unwrap()
        .attr
        .id;
    let path = dir.path().join("file");
    let program = std::thread::spawn(move || {
        for i in 0..20_000 {
            let mode = 0o4700 | i & 0o77;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let found = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(found & 0o777, mode & 0o777);
        }
    });
    let take = SetAttr { mode: Some(0), mode_mask: Some(0o6000), ..SetAttr::default() };
    // Also if another writer's change has already cleared everything.
    while !program.is_finished() {
        store.setattr(&OWN, id, &take).await.unwrap();
    }
    program.join().unwrap();
}

#[tokio::test]
async fn setting_a_mode_keeps_file_capabilities() {
    if !is_root("only root may give a file capabilities") {
        return;
    }
    // CAP_NET_BIND_SERVICE, effective and permitted (linux/capability.h, `vfs_cap_data` of revision 2).
    let mut capabilities = [0; 20];
    capabilities[..4].copy_from_slice(&0x0200_0001_u32.to_le_bytes());
    capabilities[4..8].copy_from_slice(&(1_u32 << 10).to_le_bytes());
    let dir = temp_dir();
    let store = open(dir.path());
    let set = SetAttr { mode: Some(0o755), uid: Some(4001), ..SetAttr::default() };
    let id = store
        .create(&OWN, store.root().entry(b"file").with(&set), CreateMode::MustBeNew)
        .await
        .unwrap()
        .attr
        .id;
    let owner = Caller::As(Cred { uid: 4001, gid: 4001, groups: Vec::new() });
    let path = dir.path().join("file");
    let name = "security.capability";
    let flags = rustix::fs::XattrFlags::empty();
    let set =
        |mode, mask| SetAttr { mode: Some(mode), mode_mask: Some(mask), ..SetAttr::default() };
    for (caller, keeps) in [(&owner, true), (&OWN, false)] {
        store.setattr(&OWN, id, &set(0o4755, 0o7777)).await.unwrap();
        if let Err(error) = rustix::fs::setxattr(&path, name, &capabilities, flags) {
            return weir_skip::skip(format!("a file gets no capabilities: {error}"));
        }
        let cleared = store.setattr(caller, id, &set(0, 0o4000)).await.unwrap();
        assert_eq!(cleared.mode, 0o755);
        let has = rustix::fs::getxattr(&path, name, &mut [0; 20]).is_ok();
        assert_eq!(has, keeps, "{caller:?}");
    }
}

#[tokio::test]
async fn callers_act_as_themselves() {
    if !is_root("only root may act as others") {
        return;
    }
    let dir = temp_dir();
    let store = open(dir.path());
    let alice = Caller::As(Cred { uid: 4001, gid: 4001, groups: vec![5000] });
    let bob = Caller::As(Cred { uid: 4002, gid: 4002, groups: vec![5000, 5001] });
    let set = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let denied = store
        .create(&alice, store.root().entry(b"x").with(&set(0o600)), CreateMode::MayExist)
        .await;
    assert_eq!(denied.unwrap_err(), Error::AccessDenied);
    let home = store.mkdir(&OWN, store.root().entry(b"home").with(&set(0o1777))).await.unwrap().id;
    let made = store
        .create(&alice, home.entry(b"hers").with(&set(0o640)), CreateMode::MayExist)
        .await
        .unwrap()
        .attr;
    assert_eq!((made.uid, made.gid, made.mode), (4001, 4001, 0o640));
    assert_eq!(store.access(&alice, made.id, Permissions::all()).await.unwrap(), READ_WRITE);
    assert_eq!(
        store.access(&bob, made.id, Permissions::all()).await.unwrap(),
        Permissions::empty()
    );
    assert_eq!(store.open(&bob, made.id, Access::READ).await.err(), Some(Error::AccessDenied));
    assert_eq!(store.setattr(&bob, made.id, &set(0o666)).await.unwrap_err(), Error::NotPermitted);
    assert_eq!(store.unlink(&bob, home.entry(b"hers")).await, Err(Error::NotPermitted), "sticky");
    let give = SetAttr { gid: Some(5000), ..SetAttr::default() };
    assert_eq!(store.setattr(&alice, made.id, &give).await.unwrap().gid, 5000);
    assert_eq!(
        store.access(&bob, made.id, Permissions::all()).await.unwrap(),
        Permissions::READ,
        "by a supplementary group"
    );
    store.open(&bob, made.id, Access::READ).await.unwrap();
    let give = SetAttr { uid: Some(4002), ..SetAttr::default() };
    assert_eq!(store.setattr(&alice, made.id, &give).await.unwrap_err(), Error::NotPermitted);
    let secret = store.mkdir(&alice, home.entry(b"private").with(&set(0o700))).await.unwrap().id;
    store
        .create(&alice, secret.entry(b"in").with(&set(0o666)), CreateMode::MayExist)
        .await
        .unwrap();
    assert_eq!(store.lookup(&bob, secret.entry(b"in")).await.unwrap_err(), Error::AccessDenied);
    assert_eq!(
        store
            .readdir(
                &bob,
                ReaddirRequest { dir: secret, cookie: 0, max_entries: 10, with_attr: false }
            )
            .await
            .unwrap_err(),
        Error::AccessDenied
    );
    // Beyond the mode: a list grants bob what others lack, and denies what they have.
    let listed = store
        .create(&alice, home.entry(b"listed").with(&set(0o604)), CreateMode::MayExist)
        .await
        .unwrap()
        .attr
        .id;
    for (rights, mode_of_others) in [(6, 0), (3, 4), (0, 7), (5, 2)] {
        let entries = [
            (AclWho::Owner, 6),
            (AclWho::User(4002), rights),
            (AclWho::Group, 0),
            (AclWho::Mask, 7),
            (AclWho::Other, mode_of_others),
        ];
        let list = Acl::new(entries).unwrap();
        store.set_acl(&OWN, listed.acl(AclKind::Access), Some(&list)).await.unwrap();
        let his = Permissions::from_bits_retain(rights.into());
        for asked in [Permissions::all(), Permissions::READ | Permissions::EXECUTE] {
            assert_eq!(store.access(&bob, listed, asked).await.unwrap(), his & asked, "{rights}");
        }
        assert_eq!(store.access(&alice, listed, Permissions::all()).await.unwrap(), READ_WRITE);
    }
    // The thread has its own identity again after each call, even a failed one.
    fs::write(dir.path().join("roots"), "x").unwrap();
    assert_eq!(fs::metadata(dir.path().join("roots")).unwrap().uid(), 0);
    assert_eq!(store.access(&OWN, made.id, Permissions::all()).await.unwrap(), READ_WRITE);
}

#[tokio::test]
async fn directories_inherit_and_keep_set_group_id() {
    if !is_root("only root may act as others") {
        return;
    }
    let dir = temp_dir();
    let shared = dir.path().join("shared");
    fs::create_dir(&shared).unwrap();
    // By a caller who is not in the group, while the process's umask removes other bits.
    std::os::unix::fs::chown(&shared, None, Some(5000)).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o2777)).unwrap();
    let store = open(dir.path());
    let shared = find(&store, store.root(), "shared").await;
    let alice = Caller::As(Cred { uid: 4001, gid: 4001, groups: Vec::new() });
    let set = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let made = store.mkdir(&alice, shared.entry(b"dir").with(&set(0o777))).await.unwrap();
    assert_eq!((made.uid, made.gid, made.mode), (4001, 5000, 0o2777));
    let file = shared.entry(b"file");
    let made = store.create(&alice, file.with(&set(0o777)), CreateMode::MustBeNew).await.unwrap();
    assert_eq!((made.attr.gid, made.attr.mode), (5000, 0o777));
    // Asked for, although mkdir(2) leaves it out.
    let own = store.mkdir(&OWN, store.root().entry(b"own").with(&set(0o2755))).await.unwrap();
    assert_eq!(own.mode, 0o2755);
}

/// As `open(path, O_CREAT | O_TRUNC | O_WRONLY, 0444)` does, which clients send as one request.
#[tokio::test]
async fn a_new_file_gets_a_size_though_its_mode_forbids_writing() {
    if !is_root("only root may act as others") {
        return;
    }
    let dir = temp_dir();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let store = open(dir.path());
    let bob = Caller::As(Cred { uid: 4002, gid: 4002, groups: Vec::new() });
    for (name, size) in [("empty", 0), ("full", 5)] {
        let set = SetAttr { mode: Some(0o444), size: Some(size), ..SetAttr::default() };
        let new = store.root().entry(name.as_bytes()).with(&set);
        let made = store.create(&bob, new, CreateMode::MustBeNew).await.unwrap().attr;
        assert_eq!((made.mode, made.size, made.uid), (0o444, size, 4002));
        let sized = SetAttr { size: Some(1), ..SetAttr::default() };
        let denied = store.setattr(&bob, made.id, &sized).await;
        assert_eq!(denied.unwrap_err(), Error::AccessDenied, "it is not new any more");
    }
}

#[tokio::test]
async fn rights_to_write_and_to_list_are_enough() {
    if !is_root("only root may act as others") {
        return;
    }
    let dir = temp_dir();
    let store = open(dir.path());
    let bob = Caller::As(Cred { uid: 4002, gid: 4002, groups: Vec::new() });
    let set = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let file = store
        .create(&OWN, store.root().entry(b"shared").with(&set(0o666)), CreateMode::MustBeNew)
        .await
        .unwrap()
        .attr;
    // One of the times, as a client sends it with a truncation.
    let touch = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    let touched = store.setattr(&bob, file.id, &touch).await.unwrap();
    assert!(touched.mtime > file.mtime && touched.atime == file.atime);
    let past = SetAttr { mtime: Some(SetTime::To(file.mtime)), ..SetAttr::default() };
    assert_eq!(store.setattr(&bob, file.id, &past).await.unwrap_err(), Error::NotPermitted);
    store.setattr(&OWN, file.id, &set(0o644)).await.unwrap();
    assert_eq!(store.setattr(&bob, file.id, &touch).await.unwrap_err(), Error::NotPermitted);
    // A caller with read permission for the directory gets its names, even without search
    // permission.
    let listed =
        store.mkdir(&OWN, store.root().entry(b"listed").with(&set(0o744))).await.unwrap().id;
    store.create(&OWN, listed.entry(b"in").with(&set(0o644)), CreateMode::MustBeNew).await.unwrap();
    assert_eq!(
        store
            .readdir(
                &bob,
                ReaddirRequest { dir: listed, cookie: 0, max_entries: 10, with_attr: true }
            )
            .await
            .unwrap()
            .entries
            .len(),
        1
    );
    assert_eq!(store.lookup(&bob, listed.entry(b"in")).await.unwrap_err(), Error::AccessDenied);
}

#[tokio::test]
async fn few_descriptors_of_directories_stay_open() {
    let dir = temp_dir();
    let store = over_directories(dir.path(), 50, 8);
    // Other tests in this process open files as well.
    let root = dir.path().canonicalize().unwrap();
    let open_below = || {
        let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
        all.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(&root))).count()
    };
    let before = open_below();
    look_into_all(&store, 50).await;
    let after = open_below();
    assert!(after < before + 45, "{before} descriptors before, {after} after");
}

/// In a process of its own, because all of a process's threads share the limit.
#[tokio::test]
async fn the_store_survives_running_out_of_descriptors() {
    const DIRS: u32 = 200;
    const ALONE: &str = "WEIR_TEST_FEW_DESCRIPTORS";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "the_store_survives_running_out_of_descriptors", "--nocapture"]);
        let output = alone.env(ALONE, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
        return;
    }
    let dir = temp_dir();
    let store = over_directories(dir.path(), DIRS, DIRS as usize);
    let open = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let few = rustix::process::Rlimit { current: Some(open + 20), ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    look_into_all(&store, DIRS).await;
}

/// A store with `dirs` directories, `d0` and so on, with a file each.
fn over_directories(dir: &Path, dirs: u32, dir_fds: usize) -> Arc<dyn FileSystem> {
    for i in 0..dirs {
        fs::create_dir(dir.join(format!("d{i}"))).unwrap();
        fs::write(dir.join(format!("d{i}/f")), "x").unwrap();
    }
    let options = LocalOptions { dir_fds: Some(dir_fds), ..LocalOptions::default() };
    LocalFs::open(dir, options).unwrap()
}

async fn look_into_all(store: &Arc<dyn FileSystem>, dirs: u32) {
    for round in 0..3 {
        for i in 0..dirs {
            let id = find(store, store.root(), &format!("d{i}/f")).await;
            assert_eq!(store.getattr(id).await.unwrap().size, 1, "round {round}");
        }
    }
}

#[tokio::test]
async fn a_large_directory_is_listed() {
    let dir = temp_dir();
    for i in 0..5000 {
        fs::File::create(dir.path().join(format!("a rather long name, number {i}"))).unwrap();
    }
    let (mut cookie, mut seen) = (0, std::collections::HashSet::new());
    let state = temp_dir();
    let store = open_with_state(dir.path(), state.path());
    loop {
        let page = store
            .readdir(
                &OWN,
                ReaddirRequest { dir: store.root(), cookie, max_entries: 700, with_attr: true },
            )
            .await
            .unwrap();
        for entry in page.entries {
            cookie = entry.cookie;
            assert!(entry.attr.is_some_and(|attr| attr.id.ino == entry.ino));
            assert!(seen.insert(entry.name));
        }
        if page.eof {
            break;
        }
    }
    assert_eq!(seen.len(), 5000);
    drop(store);
    let store = open_with_state(dir.path(), state.path());
    let id = find(&store, store.root(), "a rather long name, number 77").await;
    assert_eq!(store.getattr(id).await.unwrap().kind, FileKind::Regular);
}

#[tokio::test]
async fn a_file_that_its_owner_may_not_open_is_synced() {
    let dir = temp_dir();
    let fs = open(dir.path());
    for mode in [0, 0o200, 0o400] {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        let name = format!("mode {mode:o}");
        let made = fs
            .create(&OWN, fs.root().entry(name.as_bytes()).with(&set), CreateMode::MustBeNew)
            .await
            .unwrap();
        fs.sync_node(made.attr.id).await.unwrap();
    }
}

#[tokio::test]
async fn clients_may_link_files_that_local_programs_may_not() {
    if !is_root("only root can become another user") {
        return;
    }
    let dir = temp_dir();
    let store = open(dir.path());
    let root = store.root();
    let user = Caller::As(Cred { uid: 1234, gid: 1234, groups: Vec::new() });
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let private = store
        .create(&OWN, root.entry(b"private").with(&mode(0o4600)), CreateMode::MustBeNew)
        .await
        .unwrap()
        .attr
        .id;
    let sticky = store.mkdir(&OWN, root.entry(b"sticky").with(&mode(0o1777))).await.unwrap().id;
    let closed = store.mkdir(&OWN, root.entry(b"closed").with(&mode(0o755))).await.unwrap().id;
    // With fs.protected_hardlinks at 1, linkat(2) refuses this to the user.
    assert_eq!(store.link(&user, private, sticky.entry(b"link")).await.unwrap().nlink, 2);
    let denied = store.link(&user, private, closed.entry(b"link")).await;
    assert_eq!(denied.unwrap_err(), Error::AccessDenied);
    // The owner's rights ended with the call.
    let chmod = store.setattr(&user, private, &mode(0o666)).await;
    assert_eq!(chmod.unwrap_err(), Error::NotPermitted);
}

#[tokio::test]
async fn threads_that_write_are_not_the_superuser() {
    if !is_root("only root's threads can be others") {
        return;
    }
    for io in [IoEngine::Auto, IoEngine::Threads] {
        let dir = temp_dir();
        let options = LocalOptions { io, ..LocalOptions::default() };
        let store: Arc<dyn FileSystem> = LocalFs::open(dir.path(), options).unwrap();
        let file = new_file(&store, store.root(), "f").await;
        for round in 0..20 {
            write(&*file, round << 17, &vec![round as u8; 1 << 17]).await.unwrap();
        }
        file.allocate(0, 8 << 20).await.unwrap();
        file.sync(false).await.unwrap();
        let mut writers = 0;
        for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
            let limit = Instant::now() + Duration::from_secs(60);
            // A thread may end meanwhile.
            while let Ok(status) = fs::read_to_string(task.path().join("status")) {
                let field = |name: &str| {
                    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
                    line.split_whitespace().last().unwrap().to_owned()
                };
                if !["weir-io", "weir-ring"].contains(&&*field("Name:")) {
                    break;
                }
                // Real, effective, saved, file system.
                let uid = field("Uid:");
                let effective = u64::from_str_radix(&field("CapEff:"), 16).unwrap();
                let (fsetid, sys_resource) = (1 << 4, 1 << 24);
                if uid != "0" && effective & (fsetid | sys_resource) == fsetid {
                    writers += 1;
                    break;
                }
                // Another test's thread may have just been started.
                assert!(Instant::now() < limit, "{status}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        assert!(writers > 0);
    }
}

#[tokio::test]
async fn the_last_page_that_a_file_can_have_is_read() {
    // Few file systems support files of that size; tmpfs does.
    let shm = Path::new("/dev/shm");
    let Ok(dir) = tempfile::tempdir_in(shm) else {
        weir_skip::skip("no /dev/shm");
        return;
    };
    let store = open(dir.path());
    let largest = store.max_file_size();
    let file = new_file(&store, store.root(), "f").await;
    file.set_size(largest).await.unwrap();
    let begin = (largest - 1) / 4096 * 4096 - (1 << 20);
    let data: Vec<u8> = (0..largest - begin).map(|i| (i % 251 + 1) as u8).collect();
    write(&*file, begin, &data).await.unwrap();
    for from in [0, 1 << 20] {
        let (buffer, layout) = read(&*file, begin + from, 2 << 20).await.unwrap();
        assert_eq!(bytes_of(begin + from, &buffer, &layout), data[from as usize..], "from {from}");
    }
}
