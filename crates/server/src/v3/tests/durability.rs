//! Names, attributes and sizes are on disk before the reply.

use super::*;
use crate::export::Durability;
use std::time::Duration;
use weir_nfs::nfsacl::{Entries, Entry, Mask, Setacl};
use weir_nfs::v3::op::mknod::{self, What as Kind};
use weir_nfs::v3::op::{commit, link, remove, rename, rmdir, setattr, symlink, write};
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_vfs::ReaddirRequest;

const MODE: SetAttr = SetAttr { mode: Some(0o700), ..SetAttr::NONE };

pub(super) async fn fixture(durability: Durability) -> (Fixture, Arc<Fault>) {
    let fault = Fault::over(MemoryFs::new(), 1);
    let config = Config { budget_bytes: 16 << 20, ..Config::default() };
    let fs = Cache::new(config).unwrap().mount(fault.clone());
    let options = ExportOptions { squash: Squash::Nobody, durability, ..Default::default() };
    let export = Export { path: "/".into(), source: "".into(), fs, options };
    (Fixture::serve(vec![export], 0, tempfile::tempdir().unwrap()).await, fault)
}

fn syncs(fault: &Fault, what: What) {
    fault.clear();
    fault.add(Rule { call: Call::SyncNode, when: When::Always, what });
}

/// Executes each procedure that changes names, attributes or sizes, and returns the results. The
/// changes are made even if the commit fails.
async fn every_change(c: &mut Client, n: u32) -> Vec<(&'static str, Result<(), Error>)> {
    let mut done = Vec::new();
    let name = |what: &str| format!("{what}-{n}");
    let set = || MODE;
    macro_rules! did {
        ($what:literal, $res:expr) => {
            done.push(($what, $res.map(|_| ()).map_err(|failure| failure.status)))
        };
    }
    let target = c.in_root(&name("file"));
    did!("CREATE", c.call(&create::Args { target, how: How::Guarded(set()) }).await);
    let target = c.in_root(&name("dir"));
    did!("MKDIR", c.call(&mkdir::Args { target, set: set() }).await);
    let target = c.in_root(&name("symlink"));
    did!("SYMLINK", c.call(&symlink::Args { target, set: set(), path: "x".into() }).await);
    let target = c.in_root(&name("fifo"));
    did!("MKNOD", c.call(&mknod::Args { target, what: Kind::Fifo(set()) }).await);
    let root = c.root.clone();
    let file = c.lookup(&root, &name("file")).await.unwrap();
    let dir = c.lookup(&root, &name("dir")).await.unwrap();
    let args = setattr::Args { object: file.clone(), set: set(), guard: None };
    did!("SETATTR of the mode", c.call(&args).await);
    let size = SetAttr { size: Some(n.into()), ..SetAttr::NONE };
    let args = setattr::Args { object: file.clone(), set: size, guard: None };
    did!("SETATTR of the size", c.call(&args).await);
    let link = c.in_root(&name("link"));
    did!("LINK", c.call(&link::Args { file: file.clone(), link }).await);
    let entry = |tag, rights| Entry { tag, id: 0, rights };
    let access = vec![entry(1, 6), entry(4, 4), entry(0x10, 4), entry(0x20, 4)];
    let access = Entries { count: 4, entries: access.into() };
    let args = Setacl { file, mask: Mask::ACCESS, access, default: Entries::default() };
    did!("SETACL", c.call_acl(&args).await);
    let to = DirOp::new(dir.clone(), &b"moved"[..]);
    did!("RENAME", c.call(&rename::Args { from: c.in_root(&name("link")), to: to.clone() }).await);
    did!("REMOVE", c.call(&remove::Args { target: to }).await);
    did!("RMDIR", c.call(&rmdir::Args { target: c.in_root(&name("dir")) }).await);
    done
}

#[tokio::test]
async fn changes_that_cannot_be_synced_are_not_acknowledged() {
    let (f, fault) = fixture(Durability::Sync).await;
    let mut c = f.client().await;
    for (what, done) in every_change(&mut c, 1).await {
        assert_eq!(done, Ok(()), "{what}");
    }
    syncs(&fault, What::Fail(weir_vfs::Error::Io));
    for (what, done) in every_change(&mut c, 2).await {
        assert_eq!(done, Err(Error::Io), "{what}");
    }
}

#[tokio::test]
async fn a_relaxed_export_acknowledges_names_before_they_are_durable() {
    let (f, fault) = fixture(Durability::Relaxed).await;
    let mut c = f.client().await;
    syncs(&fault, What::Fail(weir_vfs::Error::Io));
    for (what, done) in every_change(&mut c, 1).await {
        assert_eq!(done, Ok(()), "{what}");
    }
}

#[tokio::test]
async fn a_failed_sync_changes_the_verifier() {
    let (f, fault) = fixture(Durability::Sync).await;
    let mut c = f.client().await;
    let file = c.file("file").await;
    let data = weir_nfs::Data::from(Bytes::from_static(b"data"));
    let stable = write::Stability::Unstable;
    let args = write::Args { file, offset: 0, count: 4, stable, data };
    let first = c.call(&args).await.unwrap();
    syncs(&fault, What::Fail(weir_vfs::Error::Io));
    let target = c.in_root("dir");
    assert_eq!(status(c.call(&mkdir::Args { target, set: MODE }).await), Error::Io);
    let second = c.call(&args).await.unwrap();
    assert_ne!(first.verifier, second.verifier);
}

#[tokio::test]
async fn the_verifier_changes_after_lost_data_even_if_another_open_file_got_the_error() {
    let (f, fault) = fixture(Durability::Sync).await;
    let (mut c, mut other) = (f.client().await, f.client().await);
    let file = c.file("file").await;
    let data = weir_nfs::Data::from(Bytes::from_static(b"data"));
    let stable = write::Stability::Unstable;
    let args = write::Args { file: file.clone(), offset: 0, count: 4, stable, data };
    let first = c.call(&args).await.unwrap();
    let what = What::Fail(weir_vfs::Error::NoSpace);
    fault.add(Rule { call: Call::Write, when: When::Always, what });
    assert_eq!(f.fs.cache().flush().await, Err(weir_vfs::Error::NoSpace));
    fault.clear();
    assert_eq!(f.fs.cache().dirty_bytes(), 0);
    // A client that wrote nothing gets the error.
    while other.call(&args).await.is_err() {}
    let args = commit::Args { file, offset: 0, count: 0 };
    let committed = loop {
        if let Ok(committed) = c.call(&args).await {
            break committed;
        }
    };
    assert_ne!(committed.verifier, first.verifier);
}

#[tokio::test]
async fn a_reply_waits_for_its_sync_without_blocking_other_changes_of_the_directory() {
    const MANY: usize = 40;
    let (f, fault) = fixture(Durability::Sync).await;
    let mut c = f.client().await;
    for n in 0..MANY {
        c.file(&format!("file-{n}")).await;
    }
    syncs(&fault, What::Hold);
    let mut clients = Vec::new();
    for n in 0..MANY {
        let mut one = f.client().await;
        let target = one.in_root(&format!("file-{n}"));
        one.send(1, (v3::PROGRAM, v3::VERSION, 12), &remove::Args { target }).await;
        clients.push(one);
    }
    // All are removed while the first sync is still running, and none is answered.
    let entries = async || {
        let page =
            f.fs.readdir(
                &weir_vfs::Caller::Own,
                ReaddirRequest { dir: f.fs.root(), cookie: 0, max_entries: 99, with_attr: false },
            )
            .await;
        page.unwrap().entries.len()
    };
    while entries().await > 0 || fault.held() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(fault.injected(), 1);
    let early = tokio::time::timeout(Duration::from_millis(100), clients[0].reply()).await;
    assert!(early.is_err(), "told before it was durable");
    let replies = async {
        for client in &mut clients {
            let (header, results) = client.reply().await;
            assert_eq!(header, ReplyHeader::accepted(1, AcceptStatus::Success));
            assert_eq!(results[..4], [0; 4]);
        }
    };
    let release = async {
        loop {
            fault.release();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! { () = replies => {}, () = release => {} }
    assert!(fault.injected() < MANY as u64 / 2, "{} syncs", fault.injected());
}

#[tokio::test]
async fn a_failed_stable_write_changes_the_verifier() {
    let (f, fault) = fixture(Durability::Sync).await;
    let mut c = f.client().await;
    let file = c.file("file").await;
    let write = |stable| {
        let data = weir_nfs::Data::from(Bytes::from_static(b"data"));
        write::Args { file: file.clone(), offset: 0, count: 4, stable, data }
    };
    for stable in [write::Stability::DataSync, write::Stability::FileSync] {
        let before = c.call(&write(write::Stability::Unstable)).await.unwrap();
        let what = What::Fail(weir_vfs::Error::Io);
        fault.add(Rule { call: Call::Sync, when: When::Always, what });
        assert_eq!(status(c.call(&write(stable)).await), Error::Io);
        fault.clear();
        let args = commit::Args { file: file.clone(), offset: 0, count: 0 };
        // The unwritten pages are still in the cache; the client must still write again.
        let committed = c.call(&args).await;
        let committed = match committed {
            Ok(committed) => committed,
            Err(_) => c.call(&args).await.unwrap(),
        };
        assert_ne!(committed.verifier, before.verifier, "{stable:?}");
    }
}
