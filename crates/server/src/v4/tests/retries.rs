//! Requests that clients send again, to the same server or after it was restarted.

use super::*;
use weir_nfs::v4::Fattr;
use weir_nfs::v4::op::{create, rename};
use weir_nfs::v4::types::FileType;

fn rename(from: &str, to: &str) -> Vec<Op> {
    let args = rename::Args { from: from.into(), to: to.into() };
    vec![Op::Putrootfh(()), Op::Savefh(()), Op::Putrootfh(()), Op::Rename(args)]
}

fn mkdir(name: &str) -> Vec<Op> {
    let (kind, attrs) = (create::Kind::Directory, Attrs::default().into());
    let args = create::Args { kind, name: name.into(), attrs };
    vec![Op::Putrootfh(()), Op::Create(args), Op::Getfh(())]
}

/// Creates a regular file, which no client has open.
async fn create(f: &Fixture) {
    let set = weir_vfs::SetAttr::default();
    f.fs.create(
        &weir_vfs::Caller::Own,
        f.fs.root().entry(b"file").with(&set),
        weir_vfs::CreateMode::MustBeNew,
    )
    .await
    .unwrap();
}

fn is_dir() -> Fattr {
    Attrs { kind: Some(FileType::Directory), ..Attrs::default() }.into()
}

/// Changes each of which is possible once, in this order.
fn changes() -> Vec<Vec<Op>> {
    let mut all = vec![mkdir("a"), rename("a", "b")];
    let link = Op::Link("link".into());
    all.push(vec![
        Op::Putrootfh(()),
        Op::Lookup("file".into()),
        Op::Savefh(()),
        Op::Putrootfh(()),
        link,
    ]);
    all.push(vec![Op::Putrootfh(()), Op::Remove("b".into())]);
    // Two changes in one compound.
    all.push([mkdir("c"), rename("c", "d"), vec![Op::Remove("link".into())]].concat());
    // The names that are removed are looked up first, as Weir's own client does.
    for (name, check) in [("d", Op::Verify(is_dir())), ("file", Op::Nverify(is_dir()))] {
        let look_up = vec![Op::Putrootfh(()), Op::Lookup(name.into()), check];
        all.push([look_up, vec![Op::Putrootfh(()), Op::Remove(name.into())]].concat());
    }
    all
}

#[tokio::test]
async fn a_change_of_names_in_a_session_is_made_once_over_restarts() {
    for minor in [1, 2] {
        let mut f = Fixture::new().await;
        create(&f).await;
        for ops in changes() {
            let mut client = f.connect("a", minor).await;
            client.begin_session(1 << 20).await;
            client.ok(vec![Op::ReclaimComplete(reclaim_complete::Args { one_fs: false })]).await;
            let made = client.ok(ops.clone()).await;
            let (session, sequence) = (client.session, client.sequence);
            for _ in 0..2 {
                f.restart().await;
                let mut client = f.connect("a", minor).await;
                (client.session, client.sequence) = (session, sequence - 1);
                // Linux's client states the slots that are in use when it sends the request again.
                client.highest_slot = 3;
                let again = client.ok(ops.clone()).await;
                let handle = |results: &[OpRes]| {
                    results.iter().find_map(|result| match result {
                        OpRes::Getfh(handle) => Some(handle.clone().unwrap()),
                        _ => None,
                    })
                };
                assert_eq!(handle(&again), handle(&made), "{ops:?}");
                // Anything else needs a new session.
                client.sequence += 1;
                let next = [vec![client.sequence()], ops.clone()].concat();
                assert_eq!(client.raw(next).await.status, Err(Error::BadSession));
            }
        }
    }
}

#[tokio::test]
async fn a_removal_that_is_sent_again_leaves_what_has_the_name_by_then() {
    let mut f = Fixture::new().await;
    create(&f).await;
    let look_up = vec![Op::Putrootfh(()), Op::Lookup("file".into()), Op::Nverify(is_dir())];
    let ops = [look_up, vec![Op::Putrootfh(()), Op::Remove("file".into())]].concat();
    let mut client = f.client("a").await;
    client.ok(ops.clone()).await;
    let (session, sequence) = (client.session, client.sequence);
    f.restart().await;
    let mut other = f.client("b").await;
    other.ok(mkdir("file")).await;
    let mut client = f.connect("a", 2).await;
    (client.session, client.sequence) = (session, sequence - 1);
    client.ok(ops).await;
    other.ok(vec![Op::Putrootfh(()), Op::Lookup("file".into()), Op::Verify(is_dir())]).await;
}

#[tokio::test]
async fn a_request_sent_again_with_another_highest_slot_and_stamp_gets_its_reply() {
    let f = Fixture::new().await;
    let mut client = f.client("a").await;
    client.cache_this = true;
    let made = client.run(mkdir("a")).await;
    assert_eq!(made.status, Ok(()));
    client.highest_slot = 3;
    let cred = AuthSys { stamp: 7, uid: 0, machine_name: "a".into(), ..AuthSys::default() };
    client.cred = OpaqueAuth::from(&cred);
    let again = client.raw([vec![client.sequence()], mkdir("a")].concat()).await;
    assert_eq!(again.bytes[4..], made.bytes[4..]);
    let other = client.raw([vec![client.sequence()], mkdir("b")].concat()).await;
    assert_eq!(other.status, Err(Error::SeqFalseRetry));
}

#[tokio::test]
async fn a_change_of_names_in_minor_version_0_is_made_once_over_restarts() {
    let mut f = Fixture::new().await;
    create(&f).await;
    for ops in changes() {
        let mut client = f.connect("a", 0).await;
        assert_eq!(client.raw(ops.clone()).await.status, Ok(()));
        let xid = client.xid;
        for _ in 0..2 {
            f.restart().await;
            let mut client = f.connect("a", 0).await;
            client.xid = xid - 1;
            let again = client.raw(ops.clone()).await;
            assert_eq!(again.status, Ok(()), "{:?}", again.results.last());
        }
    }
}

#[tokio::test]
async fn a_compound_that_needs_state_is_not_resumed_after_a_restart() {
    let mut f = Fixture::new().await;
    create(&f).await;
    let mut client = f.client("a").await;
    let ops = [mkdir("a"), vec![Op::Putrootfh(()), client.open_op("file", 0)]].concat();
    client.ok(ops.clone()).await;
    f.restart().await;
    let session = (client.session, client.sequence);
    let mut client = f.connect("a", 2).await;
    (client.session, client.sequence) = session;
    let again = [vec![client.sequence()], ops].concat();
    assert_eq!(client.raw(again).await.status, Err(Error::BadSession));
}

#[tokio::test]
async fn a_request_that_claims_very_many_operations_is_refused_at_once() {
    let mut f = Fixture::new().await;
    let mut client = f.client("a").await;
    client.ok(mkdir("a")).await;
    f.restart().await;
    let mut client = f.connect("a", 2).await;
    client.session = SessionId::default();
    let sequence = client.sequence();
    client.send("tag", u32::MAX, &[sequence]).await;
    let mut d = Decoder::new(client.reply().await);
    let header: ReplyHeader = d.get().unwrap();
    assert_eq!(header, ReplyHeader::accepted(client.xid, AcceptStatus::Success));
    assert_eq!(d.get::<CompoundResHeader>().unwrap().status, Err(Error::BadSession));
}
