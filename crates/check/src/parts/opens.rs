//! OPEN (RFC 8881 section 18.16): share reservations, and files that are not regular ones.

use crate::examiner::Examiner;
use crate::raw_open::{ShareAccess, ShareDeny, granted, refused};
use crate::rule::{Rule, rule};
use crate::verdict::{Result, Verdict};
use weir_nfs::v4::Error;
use weir_vfs::{Caller, FileSystem, SetAttr, SpecialFile};

pub(crate) const RULES: &[Rule] = &[
    rule!(
        "an open's deny mode applies to other owners of the same client",
        "RFC 8881 9.7",
        "one owner denies writing; another opens to write: SHARE_DENIED; to read: granted",
        denied
    ),
    rule!(
        "an open whose deny mode conflicts with another owner's access is refused",
        "RFC 8881 9.7",
        "one owner reads; another opens and denies reading: SHARE_DENIED",
        would_deny
    ),
    rule!(
        "access is granted again after the denying open's CLOSE",
        "RFC 8881 9.7",
        "the refused OPEN, repeated",
        free_after_close
    ),
    rule!("OPEN of a directory is refused", "RFC 8881 18.16.4", "ISDIR", directory),
    rule!("OPEN of a symbolic link is refused", "RFC 8881 18.16.4", "SYMLINK", symlink),
    rule!(
        "OPEN of a named pipe is refused",
        "RFC 8881 18.16.4",
        "SYMLINK or WRONG_TYPE; if the server makes no pipes, a note",
        pipe
    ),
    rule!(
        "OPEN of a socket is refused",
        "RFC 8881 18.16.4",
        "SYMLINK or WRONG_TYPE; if the server makes no sockets, a note",
        socket
    ),
];

const NONE: ShareDeny = ShareDeny::empty();

async fn denied(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("denied").await?;
    let raw = examiner.raw().await?;
    let Ok(first) = raw.open("first", &name, ShareAccess::READ, ShareDeny::WRITE).await? else {
        return Ok(Verdict::Fail("an open that denies writing is refused".into()));
    };
    let writes = raw.open("second", &name, ShareAccess::WRITE, NONE).await?.map(drop);
    let reads = raw.open("second", &name, ShareAccess::READ, NONE).await?;
    let mut verdict = refused(writes, &[Error::ShareDenied]).max(granted(reads.clone().map(drop)));
    for open in [Ok(first), reads].into_iter().flatten() {
        verdict = verdict.max(granted(raw.close(&open.handle, open.stateid).await?));
    }
    Ok(verdict)
}

async fn would_deny(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("denied").await?;
    let raw = examiner.raw().await?;
    let first = raw.opened("first", &name, ShareAccess::READ).await?;
    let denies = raw.open("second", &name, ShareAccess::READ, ShareDeny::READ).await?.map(drop);
    let verdict = refused(denies, &[Error::ShareDenied]);
    Ok(verdict.max(granted(raw.close(&first.handle, first.stateid).await?)))
}

async fn free_after_close(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("denied").await?;
    let raw = examiner.raw().await?;
    let Ok(first) = raw.open("first", &name, ShareAccess::READ, ShareDeny::BOTH).await? else {
        return Ok(Verdict::Fail("an open that denies reading and writing is refused".into()));
    };
    let closed = granted(raw.close(&first.handle, first.stateid).await?);
    let second = match raw.open("second", &name, ShareAccess::BOTH, NONE).await? {
        Ok(open) => raw.close(&open.handle, open.stateid).await?,
        Err(error) => Err(error),
    };
    Ok(closed.max(granted(second)))
}

async fn directory(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.make_dir("directory").await?;
    open_refused(examiner, &name, &[Error::IsDir]).await
}

async fn symlink(examiner: &mut Examiner) -> Result<Verdict> {
    let name = examiner.new_name("link");
    let set = SetAttr::default();
    examiner.ours.symlink(&Caller::Own, examiner.dir.entry(&name).with(&set), b"target").await?;
    open_refused(examiner, &name, &[Error::Symlink]).await
}

async fn pipe(examiner: &mut Examiner) -> Result<Verdict> {
    special(examiner, SpecialFile::Fifo).await
}

async fn socket(examiner: &mut Examiner) -> Result<Verdict> {
    special(examiner, SpecialFile::Socket).await
}

async fn special(examiner: &mut Examiner, node: SpecialFile) -> Result<Verdict> {
    match examiner.make_special(node).await {
        Ok(name) => open_refused(examiner, &name, &[Error::Symlink, Error::WrongType]).await,
        Err(error) => Ok(Verdict::Note(format!("it cannot be made: {error}"))),
    }
}

async fn open_refused(examiner: &mut Examiner, name: &[u8], expected: &[Error]) -> Result<Verdict> {
    let raw = examiner.raw().await?;
    let opened = raw.open("owner", name, ShareAccess::READ, NONE).await?;
    Ok(refused(opened.map(drop), expected))
}
