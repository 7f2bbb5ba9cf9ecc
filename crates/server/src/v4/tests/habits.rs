//! Habits of macOS's and FreeBSD's clients of version 4, one test each.

use super::*;
use weir_nfs::v4::op::{access, lookup, open_confirm, readdir, setattr};
use weir_nfs::v4::types::{NfsTime, SetTime};
use weir_nfs::v4::{Bitmap, OpCode, attr};

/// macOS asks for all attributes that there were in minor version 0, archive and MIME type among
/// them; what the server has not is left out.
#[tokio::test]
async fn macos_asks_for_attributes_that_no_unix_has() {
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

/// macOS opens with share reservations of its own, of owners that are new each time, and confirms;
/// then it sets what OPEN's exclusive way has no place for.
#[tokio::test]
async fn macos_opens_exclusively_confirms_and_sets_attributes() {
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

/// macOS mounted with `namedattr` opens the directory of named attributes; told that there are
/// none, it goes on with files beside.
#[tokio::test]
async fn macos_is_told_that_there_are_no_named_attributes() {
    let f = Fixture::new().await;
    let mut c = f.connect("mac", 0).await;
    let reply = c.raw(vec![Op::Putrootfh(()), Op::Refused(OpCode::Openattr)]).await;
    assert_eq!(reply.status, Err(Error::NotSupp));
    let named = Bitmap::of(&[attr::NAMED_ATTR]);
    let reply = c.raw(vec![Op::Putrootfh(()), Op::Getattr(named)]).await;
    let Some(OpRes::Getattr(Ok(attrs))) = reply.results.last() else { panic!("{reply:?}") };
    assert_eq!(attrs.named_attr, Some(false));
}

/// macOS asks for rights beyond those of its version; the answer says which of them it is about.
#[tokio::test]
async fn macos_asks_for_rights_that_there_are_not() {
    let f = Fixture::new().await;
    let mut c = f.connect("mac", 0).await;
    let all = access::Rights::from_bits_retain(u32::MAX);
    let reply = c.raw(vec![Op::Putrootfh(()), Op::Access(all)]).await;
    let Some(OpRes::Access(Ok(granted))) = reply.results.last() else { panic!("{reply:?}") };
    let known = access::Rights::READ | access::Rights::LOOKUP | access::Rights::DELETE;
    assert!(granted.supported.contains(known) && granted.supported.contains(granted.rights));
    assert!(!granted.supported.contains(access::Rights::XAREAD), "of a later version");
}

/// macOS's Finder reads directories in small pages, and `.` and `..` are no names to look up.
#[tokio::test]
async fn macos_reads_small_pages_and_looks_up_no_dots() {
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

/// FreeBSD asks in every version whether there are access control lists of NFSv4's kind
/// (`pathconf(_PC_ACL_NFS4)`), and how long names may be.
#[tokio::test]
async fn freebsd_asks_for_lists_and_limits() {
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
