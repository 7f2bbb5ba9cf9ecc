//! Credentials, malformed calls and retransmitted calls.

use super::*;
use weir_nfs::v3::op::access::{self, Rights};
use weir_nfs::v3::op::write::Stability;
use weir_nfs::v3::op::{commit, null, read, remove, rename, rmdir, setattr, write};
use weir_rpc::{AuthFlavor, AuthStatus, Denial};
use weir_stores::fault::{Call, Fault, Rule, What, When};
use weir_vfs::CreateMode;

fn proc(procedure: v3::Procedure) -> (u32, u32, u32) {
    (v3::PROGRAM, v3::VERSION, procedure as u32)
}

#[tokio::test]
async fn malformed_and_unknown_calls_are_refused() {
    let f = Fixture::new("memory", ExportOptions::default()).await;
    let mut c = f.client().await;
    c.call(&null::Args {}).await;
    for procedure in v3::Procedure::ALL.iter().filter(|&&p| p != v3::Procedure::Null) {
        c.send(1, proc(*procedure), &0xffff_ffff_u32).await;
        let garbage = ReplyHeader::accepted(1, AcceptStatus::GarbageArgs);
        assert_eq!(c.reply().await.0, garbage, "{procedure:?}");
    }
    c.send(2, (v3::PROGRAM, v3::VERSION, 22), &()).await;
    assert_eq!(c.reply().await.0, ReplyHeader::accepted(2, AcceptStatus::ProcUnavail));
    c.send(3, (mount::PROGRAM, mount::VERSION, 6), &()).await;
    assert_eq!(c.reply().await.0, ReplyHeader::accepted(3, AcceptStatus::ProcUnavail));
    c.send(4, (mount::PROGRAM, mount::VERSION, 1), &0xffff_ffff_u32).await;
    assert_eq!(c.reply().await.0, ReplyHeader::accepted(4, AcceptStatus::GarbageArgs));
    c.cred = OpaqueAuth { flavor: AuthFlavor::GSS, body: "x".into() };
    c.send(5, proc(v3::Procedure::Getattr), &c.root.clone()).await;
    let denied = ReplyHeader::denied(5, Denial::AuthError(AuthStatus::TooWeak));
    assert_eq!(c.reply().await.0, denied);
    c.cred = OpaqueAuth::NONE;
    c.call(&null::Args {}).await;
}

#[tokio::test]
async fn unknown_handles_fail_with_badhandle_or_stale() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let mut forged = c.root.to_vec();
        forged[5] ^= 1;
        for bad in [&forged[..], b"", b"handle"] {
            let object = bad.into();
            assert_eq!(status(c.call(&getattr::Args { object }).await), Error::BadHandle);
        }
        let file = c.file("file").await;
        c.call(&remove::Args { target: c.in_root("file") }).await.unwrap();
        let object = file.clone();
        assert_eq!(status(c.call(&getattr::Args { object }).await), Error::Stale);
        let object = file.clone();
        let args = access::Args { object, rights: Rights::READ };
        assert_eq!(status(c.call(&args).await), Error::Stale);
        let args = commit::Args { file, offset: 0, count: 0 };
        assert_eq!(status(c.call(&args).await), Error::Stale);
    })
    .await;
}

#[tokio::test]
async fn a_call_sent_twice_is_executed_once() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let args = mkdir::Args { target: c.in_root("dir"), set: SetAttr::NONE };
        c.send(7000, proc(v3::Procedure::Mkdir), &args).await;
        let first = c.reply().await;
        c.send(7000, proc(v3::Procedure::Mkdir), &args).await;
        assert_eq!(c.reply().await, first);
        // Also over another connection from the same port, but not with another xid or other
        // arguments.
        c.connect_anew(f.addr).await;
        c.send(7000, proc(v3::Procedure::Mkdir), &args).await;
        assert_eq!(c.reply().await, first);
        assert_eq!(status(c.call(&args).await), Error::Exist);
        let args = rmdir::Args { target: c.in_root("dir") };
        c.send(7000, proc(v3::Procedure::Rmdir), &args).await;
        let mut d = Decoder::new(c.reply().await.1);
        assert!(d.get::<rmdir::Res>().unwrap().is_ok());
    })
    .await;
}

#[tokio::test]
async fn the_same_call_of_another_program_is_executed() {
    on_every_store(async |f| {
        let mut c = f.client().await;
        let file = c.file("file").await;
        let size = |size| {
            let set = SetAttr { size: Some(size), ..SetAttr::NONE };
            setattr::Args { object: file.clone(), set, guard: None }
        };
        c.send(7000, proc(v3::Procedure::Setattr), &size(0)).await;
        c.reply().await;
        c.call(&size(5)).await.unwrap();
        let mut other = f.client().await;
        other.send(7000, proc(v3::Procedure::Setattr), &size(0)).await;
        other.reply().await;
        assert_eq!(c.attr(&file).await.size, 0);
    })
    .await;
}

/// A server over a store that can fail and hang.
async fn over_fault() -> (Arc<Fault>, Fixture) {
    let fault = Fault::over(MemoryFs::new(), 1);
    let config = Config { budget_bytes: 16 << 20, ..Config::default() };
    let fs = Cache::new(config).unwrap().mount(fault.clone());
    let options = ExportOptions { squash: Squash::Nobody, ..Default::default() };
    let export = Export { path: "/".into(), source: "".into(), fs, options };
    let f = Fixture::serve(vec![export], 0, tempfile::tempdir().unwrap()).await;
    (fault, f)
}

#[tokio::test]
async fn a_retransmitted_write_is_not_executed_after_a_later_one() {
    let (fault, f) = over_fault().await;
    let mut c = f.client().await;
    let file = c.file("file").await;
    let write = |byte: u8| write::Args {
        file: file.clone(),
        offset: 0,
        count: 3,
        stable: Stability::Unstable,
        data: Bytes::copy_from_slice(&[byte; 3]).into(),
    };
    // The write waits for a page to be read, and the store does not answer.
    c.call(&write(b'0')).await.unwrap();
    let args = commit::Args { file: file.clone(), offset: 0, count: 0 };
    c.call(&args).await.unwrap();
    fault.add(Rule { call: Call::Access, when: When::Always, what: What::Hold });
    fault.add(Rule { call: Call::Open, when: When::Always, what: What::Hold });
    fault.add(Rule { call: Call::Getattr, when: When::Always, what: What::Hold });
    c.send(9000, proc(v3::Procedure::Write), &write(b'1')).await;
    while fault.held() == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let held = fault.held();
    c.connect_anew(f.addr).await;
    c.send(9000, proc(v3::Procedure::Write), &write(b'1')).await;
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert_eq!(fault.held(), held, "it is not executed beside the first");
    fault.clear();
    fault.release();
    let (header, _) = c.reply().await;
    assert_eq!(header, ReplyHeader::accepted(9000, AcceptStatus::Success));
    let written = c.call(&write(b'2')).await.unwrap();
    assert_eq!(written.count, 3);
    let read = c.call(&read::Args { file: file.clone(), offset: 0, count: 3 }).await.unwrap();
    assert_eq!(read.data, Bytes::from_static(b"222").into());
}

/// A client whose write hangs in a disk connects and sends it again and again.
#[tokio::test]
async fn a_waiting_duplicate_ends_with_its_connection() {
    let (fault, f) = over_fault().await;
    let mut c = f.client().await;
    let args = write::Args {
        file: c.file("file").await,
        offset: 0,
        count: 256 << 10,
        stable: Stability::FileSync,
        data: Bytes::from(vec![7; 256 << 10]).into(),
    };
    fault.add(Rule { call: Call::Write, when: When::Always, what: What::Hold });
    c.send(9000, proc(v3::Procedure::Write), &args).await;
    while fault.held() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let call_bytes = &f.addresses.call_bytes;
    let held_calls = async |calls: usize, one: usize| {
        let holds = async {
            while call_bytes.used() != calls * one {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let holds = tokio::time::timeout(Duration::from_secs(120), holds).await;
        assert!(holds.is_ok(), "{} bytes are held", call_bytes.used());
    };
    let one = call_bytes.used();
    assert!(one > 256 << 10, "{one}");
    for _ in 0..3 {
        c.connect_anew(f.addr).await;
        c.send(9000, proc(v3::Procedure::Write), &args).await;
        held_calls(2, one).await;
        c.connect_anew(f.addr).await;
        held_calls(1, one).await;
    }
    c.send(9000, proc(v3::Procedure::Write), &args).await;
    held_calls(2, one).await;
    assert_eq!(fault.injected(), fault.held() as u64, "it is executed once");
    fault.clear();
    fault.release();
    let (header, _) = c.reply().await;
    assert_eq!(header, ReplyHeader::accepted(9000, AcceptStatus::Success));
    held_calls(0, one).await;
}

#[tokio::test]
async fn an_owner_may_read_and_write_with_any_mode_and_others_may_not() {
    on_every_store_with(ExportOptions::default(), async |f| {
        let world = weir_vfs::SetAttr { mode: Some(0o777), ..Default::default() };
        let root = f.fs.root();
        f.fs.setattr(&weir_vfs::Caller::Own, root, &world).await.unwrap();
        let mut owner = f.client_as(4711).await;
        let args = create::Args {
            target: owner.in_root("secret"),
            how: How::Guarded(SetAttr { mode: Some(0), ..SetAttr::NONE }),
        };
        let made = owner.call(&args).await.unwrap();
        if made.attr.unwrap().uid != 4711 {
            weir_skip::skip("the local store acts as its callers only for the superuser");
            return;
        }
        let file = made.handle.unwrap();
        let write = |file: &FileHandle| write::Args {
            file: file.clone(),
            offset: 0,
            count: 5,
            stable: Stability::Unstable,
            data: "hello".into(),
        };
        let read = |file: &FileHandle| read::Args { file: file.clone(), offset: 0, count: 9 };
        assert_eq!(owner.call(&write(&file)).await.unwrap().count, 5);
        assert_eq!(owner.call(&read(&file)).await.unwrap().data, "hello".into());
        let mut other = f.client_as(4712).await;
        assert_eq!(status(other.call(&write(&file)).await), Error::Access);
        assert_eq!(status(other.call(&read(&file)).await), Error::Access);
        // User 0 is squashed.
        let mut root = f.client_as(0).await;
        assert_eq!(status(root.call(&read(&file)).await), Error::Access);
        let set = SetAttr { mode: Some(0o777), ..SetAttr::NONE };
        let chmod = setattr::Args { object: file, set, guard: None };
        assert_eq!(status(other.call(&chmod).await), Error::Perm);
        assert!(owner.call(&chmod).await.is_ok());
    })
    .await;
}

#[tokio::test]
async fn every_change_of_a_read_only_export_fails_with_rofs() {
    let options = ExportOptions { read_only: true, ..Default::default() };
    on_every_store_with(options, async |f| {
        let own = weir_vfs::Caller::Own;
        let set = weir_vfs::SetAttr { mode: Some(0o666), ..Default::default() };
        f.fs.create(&own, f.fs.root().entry(b"file").with(&set), CreateMode::MustBeNew)
            .await
            .unwrap();
        let mut c = f.client().await;
        let root = c.root.clone();
        let file = c.lookup(&root, "file").await.unwrap();
        let target = c.in_root("file");
        let (offset, count, stable) = (0, 1, Stability::Unstable);
        let write = write::Args { file: file.clone(), offset, count, stable, data: "x".into() };
        assert_eq!(status(c.call(&write).await), Error::RoFs);
        let set = SetAttr { size: Some(1), ..SetAttr::NONE };
        let chsize = setattr::Args { object: file.clone(), set, guard: None };
        assert_eq!(status(c.call(&chsize).await), Error::RoFs);
        assert_eq!(status(c.call(&remove::Args { target: target.clone() }).await), Error::RoFs);
        let mkdir = mkdir::Args { target: c.in_root("dir"), set: SetAttr::NONE };
        assert_eq!(status(c.call(&mkdir).await), Error::RoFs);
        let to = c.in_root("other");
        assert_eq!(status(c.call(&rename::Args { from: target, to }).await), Error::RoFs);
        let args = access::Args { object: root, rights: Rights::all() };
        assert_eq!(c.call(&args).await.unwrap().rights, Rights::READ | Rights::LOOKUP);
    })
    .await;
}
