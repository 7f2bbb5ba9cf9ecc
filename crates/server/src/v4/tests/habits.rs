//! Habits of macOS's and FreeBSD's clients of version 4, one test each.

use super::*;
use weir_nfs::v4::op::bind_conn_to_session::{self, DirFromClient, DirFromServer};
use weir_nfs::v4::op::{
    access, lock, locku, lookup, open_confirm, readdir, secinfo_no_name, setattr, setclientid,
    setclientid_confirm,
};
use weir_nfs::v4::types::{LockType, NetAddr, NfsTime, SetTime};
use weir_nfs::v4::{Bitmap, OpCode, attr};

/// macOS requests all attributes of minor version 0, including archive and MIME type; the server omits those that
/// it does not support.
#[tokio::test]
async fn macos_requests_attributes_that_unix_lacks() {
    let f = Fixture::new().await;
    let mut c = f.connect("mac", 0).await;
    let asked = (0..=attr::MOUNTED_ON_FILEID).collect::<Vec<_>>();
    let asked = Bitmap::of(&asked).difference(attr::WRITE_ONLY);
    let reply = c.raw(vec![Op::Putrootfh(()), Op::Getattr(asked)]).await;
    let Some(OpRes::Getattr(Ok(attrs))) = reply.results.last() else { panic!("{reply:?}") };
    let odd = [attr::ARCHIVE, attr::HIDDEN, attr::MIMETYPE, attr::SYSTEM, attr::TIME_BACKUP];
    assert!(attrs.present().intersection(Bitmap::of(&odd)).is_empty());
    assert!(attrs.fileid.is_some() && attrs.mounted_on_fileid.is_some());
}

/// macOS opens with share reservations, each time with a new owner, and confirms; then it sets the attributes that
/// an exclusive OPEN cannot carry.
#[tokio::test]
async fn macos_creates_exclusively_confirms_and_sets_attributes() {
    let f = Fixture::new().await;
    let mut c = f.connect("mac", 0).await;
    let client_id = v40::introduce_at(&mut c, None).await;
    for (n, name) in ["one", "two"].into_iter().enumerate() {
        let owner = format!("{n} process").into_bytes();
        let args = open::Args {
            seqid: 0,
            share_access: open::ShareAccess::BOTH,
            share_deny: open::ShareDeny::empty(),
            owner: StateOwner { client_id, owner: owner[..].into() },
            how: open::How::Create(open::CreateHow::Exclusive(*b"\xffverify\x01")),
            claim: open::Claim::Null(name.into()),
        };
        let opened = c.raw(vec![Op::Putrootfh(()), Op::Open(args), Op::Getfh(())]).await;
        let [_, OpRes::Open(Ok(open)), OpRes::Getfh(Ok(file))] = &opened.results[..] else {
            panic!("{opened:?}")
        };
        let mut stateid = open.stateid;
        if open.flags.contains(open::ResultFlags::CONFIRM) {
            let args = open_confirm::Args { open_stateid: stateid, seqid: 1 };
            let confirmed = c.raw(vec![Op::Putfh(file.clone()), Op::OpenConfirm(args)]).await;
            let Some(OpRes::OpenConfirm(Ok(confirmed))) = confirmed.results.last() else {
                panic!("{confirmed:?}")
            };
            stateid = *confirmed;
        }
        let attrs = Attrs {
            size: Some(0),
            mode: Some(0o640),
            time_access_set: Some(SetTime::ToServerTime),
            time_modify_set: Some(SetTime::ToServerTime),
            ..Attrs::default()
        };
        let args = setattr::Args { stateid, attrs: attrs.into() };
        let shown = Bitmap::of(&[attr::MODE, attr::TIME_MODIFY]);
        let ops = vec![Op::Putfh(file.clone()), Op::Setattr(args), Op::Getattr(shown)];
        let reply = c.raw(ops).await;
        let Some(OpRes::Getattr(Ok(attrs))) = reply.results.last() else { panic!("{reply:?}") };
        assert_eq!(attrs.mode, Some(0o640));
        let NfsTime { seconds, .. } = attrs.time_modify.unwrap();
        assert!(seconds > 1_700_000_000, "the verifier is still there: {seconds}");
    }
}

/// macOS mounted with `namedattr` opens the directory of named attributes; after NOTSUPP it uses AppleDouble
/// files.
#[tokio::test]
async fn openattr_of_macos_fails_with_notsupp() {
    let f = Fixture::new().await;
    let mut c = f.connect("mac", 0).await;
    let reply = c.raw(vec![Op::Putrootfh(()), Op::Refused(OpCode::Openattr)]).await;
    assert_eq!(reply.status, Err(Error::NotSupp));
    let named = Bitmap::of(&[attr::NAMED_ATTR]);
    let reply = c.raw(vec![Op::Putrootfh(()), Op::Getattr(named)]).await;
    let Some(OpRes::Getattr(Ok(attrs))) = reply.results.last() else { panic!("{reply:?}") };
    assert_eq!(attrs.named_attr, Some(false));
}

/// macOS requests access bits that its version does not define; the reply says which ones the server supports.
#[tokio::test]
async fn macos_requests_undefined_access_bits() {
    let f = Fixture::new().await;
    let mut c = f.connect("mac", 0).await;
    let all = access::Rights::from_bits_retain(u32::MAX);
    let reply = c.raw(vec![Op::Putrootfh(()), Op::Access(all)]).await;
    let Some(OpRes::Access(Ok(granted))) = reply.results.last() else { panic!("{reply:?}") };
    let known = access::Rights::READ | access::Rights::LOOKUP | access::Rights::DELETE;
    assert!(granted.supported.contains(known) && granted.supported.contains(granted.rights));
    assert!(!granted.supported.contains(access::Rights::XAREAD), "of a later version");
}

/// macOS's Finder reads directories in small pages. LOOKUP of `.` and `..` fails.
#[tokio::test]
async fn macos_reads_directories_in_small_pages() {
    let f = Fixture::new().await;
    let mut c = f.client("a").await;
    for name in ["._a", "a", ".DS_Store"] {
        c.open(name).await;
    }
    let attrs = Bitmap::of(&[attr::TYPE, attr::FILEID, attr::RDATTR_ERROR]);
    let (mut cookie, mut names) = (0, 0);
    loop {
        let args = readdir::Args { cookie, verifier: [0; 8], dir_count: 32, max_count: 128, attrs };
        let results = c.ok(vec![Op::Putrootfh(()), Op::Readdir(args)]).await;
        let Some(OpRes::Readdir(Ok(page))) = results.last() else { panic!("{results:?}") };
        names += page.entries.0.len();
        cookie = page.entries.0.last().map_or(cookie, |entry| entry.cookie);
        if page.eof {
            break;
        }
    }
    assert_eq!(names, 3);
    for name in [".", ".."] {
        let looked: lookup::Args = name.into();
        let error = c.fails(vec![Op::Putrootfh(()), Op::Lookup(looked)]).await;
        assert_eq!(error, Error::BadName, "{name}");
    }
}

/// FreeBSD asks in every version whether the server has NFSv4 ACLs
/// (`pathconf(_PC_ACL_NFS4)`), and how long names may be.
#[tokio::test]
async fn freebsd_requests_acls_and_limits() {
    let f = Fixture::new().await;
    let asked = Bitmap::of(&[attr::SUPPORTED_ATTRS, attr::ACLSUPPORT, attr::MAXNAME, attr::ACL]);
    for minor in [0, 1] {
        let mut c = f.connect("bsd", minor).await;
        let ops = vec![Op::Putrootfh(()), Op::Getattr(asked)];
        let reply = if minor == 0 {
            c.raw(ops).await
        } else {
            c.begin_session(1 << 20).await;
            c.run(ops).await
        };
        let Some(OpRes::Getattr(Ok(attrs))) = reply.results.last() else { panic!("{reply:?}") };
        assert_eq!((attrs.aclsupport, attrs.maxname), (Some(3), Some(255)));
        assert!(attrs.supported_attrs.unwrap().contains(attr::ACL));
        assert_eq!(attrs.acl.as_ref().unwrap().0.last().unwrap().who, "EVERYONE@".into());
    }
}

/// FreeBSD without `nfsuserd` sends owners as numbers, and with it as names at a domain.
#[tokio::test]
async fn freebsd_sends_owners_as_numbers_or_names() {
    let f = Fixture::new().await;
    let mut c = f.client("bsd").await;
    let (file, stateid) = c.open("file").await;
    for (owner, status) in
        [("1001", Ok(())), ("root@example.org", Ok(())), ("no such user@a", Err(Error::BadOwner))]
    {
        let attrs = Attrs { owner: Some(owner.into()), ..Attrs::default() };
        let args = setattr::Args { stateid, attrs: attrs.into() };
        let OpRes::Setattr(res) = c.on(&file, Op::Setattr(args)).await else { panic!() };
        assert_eq!(res.status, status, "{owner}");
    }
}

/// macOS without a callback service sends the callback address 0.0.0.0, port 0, program 0: the server serves it and
/// never calls it.
#[tokio::test]
async fn macos_without_a_callback_address_gets_no_delegation() {
    let f = Fixture::new().await;
    let mut c = f.connect("mac", 0).await;
    let args = setclientid::Args {
        client: ClientOwner { verifier: [0; 8], owner: "mac".into() },
        cb_program: 0,
        cb_location: NetAddr { netid: "tcp".into(), addr: "0.0.0.0.0.0".into() },
        callback_ident: 0,
    };
    let results = c.raw(vec![Op::Setclientid(args)]).await.results;
    let Some(OpRes::Setclientid(Ok(introduced))) = results.last() else { panic!("{results:?}") };
    let client_id = introduced.client_id;
    let args = setclientid_confirm::Args { client_id, confirm: introduced.confirm };
    assert_eq!(c.raw(vec![Op::SetclientidConfirm(args)]).await.status, Ok(()));
    c.minor = 0;
    let Op::Open(mut args) = c.open_op("file", 0) else { panic!() };
    args.owner.client_id = client_id;
    // It gets no delegation even for a file that it opens repeatedly, as none could be recalled.
    for seqid in 0..3 {
        args.seqid = seqid;
        let results = c.raw(vec![Op::Putrootfh(()), Op::Open(args.clone()), Op::Getfh(())]).await;
        let [_, OpRes::Open(Ok(opened)), OpRes::Getfh(Ok(_))] = &results.results[..] else {
            panic!("{results:?}")
        };
        assert_eq!(opened.delegation, open::Delegation::None);
    }
}

/// FreeBSD unlocks from 0 to the end of the file, even if it locked less.
#[tokio::test]
async fn freebsd_unlocks_everything_at_once() {
    let f = Fixture::new().await;
    let (mut c, mut other) = (f.client("bsd").await, f.client("other").await);
    let (file, open_stateid) = c.open("file").await;
    let (_, open_other) = other.open("file").await;
    let locker = |stateid| {
        let lock_owner = StateOwner { client_id: 0, owner: "process".into() };
        lock::Locker::New(lock::NewLocker {
            open_seqid: 0,
            open_stateid: stateid,
            lock_seqid: 0,
            lock_owner,
        })
    };
    let args = lock::Args {
        kind: LockType::Write,
        reclaim: false,
        offset: u64::MAX - 10,
        length: u64::MAX,
        locker: locker(open_stateid),
    };
    let OpRes::Lock(Ok(held)) = c.on(&file, Op::Lock(args)).await else { panic!() };
    let args = locku::Args {
        kind: LockType::Write,
        seqid: 0,
        lock_stateid: held,
        offset: 0,
        length: u64::MAX,
    };
    assert!(matches!(c.on(&file, Op::Locku(args)).await, OpRes::Locku(Ok(_))));
    let args = lock::Args {
        kind: LockType::Write,
        reclaim: false,
        offset: 0,
        length: u64::MAX,
        locker: locker(open_other),
    };
    assert!(matches!(other.on(&file, Op::Lock(args)).await, OpRes::Lock(Ok(_))));
}

/// FreeBSD sends SECINFO_NO_NAME, which consumes the filehandle.
#[tokio::test]
async fn freebsd_sends_secinfo_no_name() {
    let f = Fixture::new().await;
    let mut c = f.client("bsd").await;
    let ask = secinfo_no_name::Style::Current;
    let results = c.ok(vec![Op::Putrootfh(()), Op::SecinfoNoName(ask)]).await;
    let Some(OpRes::SecinfoNoName(Ok(flavors))) = results.last() else { panic!("{results:?}") };
    assert!(!flavors.is_empty());
    let ops = vec![Op::Putrootfh(()), Op::SecinfoNoName(ask), Op::Getfh(())];
    assert_eq!(c.fails(ops).await, Error::NoFilehandle);
}

/// FreeBSD binds each further connection to the fore channel only.
#[tokio::test]
async fn freebsd_binds_connections_for_requests_only() {
    let f = Fixture::new().await;
    let mut c = f.client("bsd").await;
    let mut more = f.connect("bsd", 1).await;
    let args = bind_conn_to_session::Args {
        session: c.session,
        dir: DirFromClient::Fore,
        use_rdma: false,
    };
    let results = more.raw(vec![Op::BindConnToSession(args)]).await.results;
    let Some(OpRes::BindConnToSession(Ok(bound))) = results.last() else { panic!("{results:?}") };
    assert_eq!(bound.dir, DirFromServer::Fore);
    std::mem::swap(&mut c.stream, &mut more.stream);
    c.ok(vec![Op::Putrootfh(()), Op::Getfh(())]).await;
}

/// FreeBSD may keep a cookie of a directory that has changed since. With a cookie that no listing returned, the
/// listing ends or fails; it does not begin again.
#[tokio::test]
async fn freebsd_keeps_cookies_of_directories_that_have_changed() {
    let f = Fixture::new().await;
    let mut c = f.client("bsd").await;
    c.open("file").await;
    let attrs = Bitmap::of(&[attr::FILEID]);
    for cookie in [u64::MAX, i64::MAX as u64, 1 << 62] {
        let args =
            readdir::Args { cookie, verifier: [0; 8], dir_count: 4096, max_count: 4096, attrs };
        let reply = c.run(vec![Op::Putrootfh(()), Op::Readdir(args)]).await;
        match reply.results.last() {
            Some(OpRes::Readdir(Ok(page))) => {
                assert!(page.eof && page.entries.0.is_empty(), "{cookie}: {page:?}");
            }
            Some(OpRes::Readdir(Err(error))) => assert_eq!(*error, Error::BadCookie),
            other => panic!("{other:?}"),
        }
    }
}
