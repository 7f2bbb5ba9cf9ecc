//! Names, attributes and sizes are on disk before the reply.

use super::*;
use crate::export::Durability;
use weir_nfs::v4::op::{allocate, create, deallocate, rename, setattr, setxattr, write};
use weir_nfs::v4::types::StableHow;
use weir_stores::fault::{Call, Fault, Rule, What, When};

async fn fixture(durability: Durability) -> (Fixture, Arc<Fault>) {
    let fault = Fault::over(MemoryFs::new(), 1);
    let adjust: fn(&mut ServerConfig) = match durability {
        Durability::Sync => |_| {},
        Durability::Relaxed => |config| config.exports[0].options.durability = Durability::Relaxed,
    };
    (Fixture::of_with(fault.clone(), adjust).await, fault)
}

fn syncs_fail(fault: &Fault) {
    let what = What::Fail(weir_vfs::Error::Io);
    fault.add(Rule { call: Call::SyncNode, when: When::Always, what });
}

/// Each operation that changes names, attributes or sizes, and its result. The store executes it even if the
/// sync after it fails.
async fn every_change(c: &mut Client, fault: &Fault, fail: bool) -> Vec<(&'static str, Status)> {
    let (file, stateid) = c.open("file").await;
    if fail {
        syncs_fail(fault);
    }
    let (root, attrs) = (Op::Putrootfh(()), Attrs { mode: Some(0o700), ..Attrs::default() });
    let make = |name: &'static str, kind| {
        Op::Create(create::Args { kind, name: name.into(), attrs: attrs.clone().into() })
    };
    let set = |attrs: Attrs, stateid| Op::Setattr(setattr::Args { stateid, attrs: attrs.into() });
    let size = |size| Attrs { size: Some(size), ..Attrs::default() };
    let on_file = |op| vec![Op::Putfh(file.clone()), op];
    let (offset, length) = (0, 4096);
    let xattr = setxattr::Args {
        mode: setxattr::Mode::Either,
        name: "key".into(),
        value: weir_nfs::v4::types::Blob::copy_from(b"value"),
    };
    let to_root = vec![root.clone(), Op::Savefh(()), root.clone()];
    let moves = rename::Args { from: "link".into(), to: "moved".into() };
    let mut done = Vec::new();
    for (what, ops) in [
        ("CREATE of a directory", vec![root.clone(), make("dir", create::Kind::Directory)]),
        (
            "CREATE of a link",
            vec![root.clone(), make("symlink", create::Kind::Symlink("x".into()))],
        ),
        ("CREATE of a pipe", vec![root.clone(), make("fifo", create::Kind::Fifo)]),
        ("OPEN", vec![root.clone(), c.open_op("new", 0)]),
        ("SETATTR of the mode", on_file(set(attrs.clone(), StateId::ANONYMOUS))),
        ("SETATTR of the size", on_file(set(size(5), StateId::ANONYMOUS))),
        ("SETATTR under an open", on_file(set(size(7), stateid))),
        ("ALLOCATE", on_file(Op::Allocate(allocate::Args { stateid, offset, length }))),
        ("DEALLOCATE", on_file(Op::Deallocate(deallocate::Args { stateid, offset, length }))),
        ("SETXATTR", on_file(Op::Setxattr(xattr))),
        ("REMOVEXATTR", on_file(Op::Removexattr("key".into()))),
        (
            "LINK",
            vec![Op::Putfh(file.clone()), Op::Savefh(()), root.clone(), Op::Link("link".into())],
        ),
        ("RENAME", [to_root, vec![Op::Rename(moves)]].concat()),
        ("REMOVE of a file", vec![root.clone(), Op::Remove("moved".into())]),
        ("REMOVE of a directory", vec![root.clone(), Op::Remove("dir".into())]),
    ] {
        done.push((what, c.run(ops).await.status));
    }
    done
}

#[tokio::test]
async fn changes_that_cannot_be_synced_are_not_acknowledged() {
    let (f, fault) = fixture(Durability::Sync).await;
    let mut c = f.client("a").await;
    for (what, status) in every_change(&mut c, &fault, false).await {
        assert_eq!(status, Ok(()), "{what}");
    }
    let (f, fault) = fixture(Durability::Sync).await;
    let mut c = f.client("a").await;
    for (what, status) in every_change(&mut c, &fault, true).await {
        assert_eq!(status, Err(Error::Io), "{what}");
    }
}

#[tokio::test]
async fn a_relaxed_export_acknowledges_names_before_they_are_durable() {
    let (f, fault) = fixture(Durability::Relaxed).await;
    let mut c = f.client("a").await;
    for (what, status) in every_change(&mut c, &fault, true).await {
        assert_eq!(status, Ok(()), "{what}");
    }
    assert_eq!(fault.injected(), 0);
}

#[tokio::test]
async fn an_open_whose_sync_fails_leaves_no_state() {
    let (f, fault) = fixture(Durability::Sync).await;
    let mut c = f.client("a").await;
    let (_, stateid) = c.open("full").await;
    let full = [Op::Putrootfh(()), Op::Lookup("full".into())];
    let data = Bytes::from_static(b"data").into();
    let write = write::Args { stateid, offset: 0, stable: StableHow::Unstable, data };
    c.ok([&full[..], &[Op::Write(write)]].concat()).await;
    let close = weir_nfs::v4::op::close::Args { seqid: 0, open_stateid: stateid };
    c.ok([&full[..], &[Op::Close(close)]].concat()).await;
    syncs_fail(&fault);
    let with_deny_all = |c: &Client, name| vec![Op::Putrootfh(()), c.open_op(name, 3)];
    assert_eq!(c.fails(with_deny_all(&c, "new")).await, Error::Io);
    let Op::Open(mut truncating) = c.open_op("full", 3) else { unreachable!() };
    let attrs = Attrs { size: Some(0), ..Attrs::default() };
    truncating.how = open::How::Create(open::CreateHow::Unchecked(attrs.into()));
    assert_eq!(c.fails(vec![Op::Putrootfh(()), Op::Open(truncating)]).await, Error::Io);
    fault.clear();
    // If either open had stayed, these would be denied.
    let mut other = f.client("b").await;
    for name in ["new", "full"] {
        other.ok(with_deny_all(&other, name)).await;
    }
}
