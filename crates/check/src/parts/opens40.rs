//! OPEN, LOOKUP and stateids in version 4.0 (RFC 7530 chapters 9 and 16).

use crate::examiner::Examiner;
use crate::raw_open::{RawOpen, ShareAccess, ShareDeny, granted, refused};
use crate::raw40::{Owner40, Raw40};
use crate::rule::{Rule, rule};
use crate::verdict::{Result, Verdict};
use weir_nfs::v4::op::{setattr, write};
use weir_nfs::v4::types::{StableHow, StateId};
use weir_nfs::v4::{Attrs, Error, Op};
use weir_vfs::{Caller, FileSystem, SetAttr, SpecialFile};

pub(crate) const RULES: &[Rule] = &[
    rule!(
        "in 4.0, an open's deny mode applies to other owners of the same client",
        "RFC 7530 9.9",
        "denied to read, write and both; opened to read, write and both: SHARE_DENIED where they \
         overlap",
        denied
    ),
    rule!(
        "in 4.0, an open whose deny mode conflicts with another owner's access is refused",
        "RFC 7530 9.9",
        "the same in the opposite order",
        would_deny
    ),
    rule!(
        "in 4.0, an owner's own deny mode applies to its next OPEN",
        "RFC 7530 16.16.5",
        "one owner reads and denies writing, then opens to write: SHARE_DENIED",
        own_deny
    ),
    rule!(
        "in 4.0, OPEN with undefined access or deny bits is refused",
        "RFC 7530 16.16.5",
        "access 0 and 4, deny 4: INVAL or BADXDR",
        undefined_bits
    ),
    rule!("in 4.0, OPEN of a directory is refused", "RFC 7530 16.16.6", "ISDIR", directory),
    rule!("in 4.0, OPEN of a symbolic link is refused", "RFC 7530 16.16.6", "SYMLINK", symlink),
    rule!(
        "in 4.0, OPEN of a named pipe is refused",
        "RFC 7530 16.16.6",
        "SYMLINK; INVAL is a note; if the server makes no pipes, a note",
        pipe
    ),
    rule!(
        "in 4.0, OPEN of a socket is refused",
        "RFC 7530 16.16.6",
        "SYMLINK; INVAL is a note; if the server makes no sockets, a note",
        socket
    ),
    rule!(
        "in 4.0, LOOKUP below a symbolic link is refused",
        "RFC 7530 16.13.5",
        "SYMLINK",
        lookup_symlink
    ),
    rule!("in 4.0, LOOKUP below a file is refused", "RFC 7530 16.13.5", "NOTDIR", lookup_file),
    rule!(
        "in 4.0, a stateid from before an upgrade is refused",
        "RFC 7530 9.1.4.2",
        "READ, WRITE, SETATTR of the size, LOCK, OPEN_DOWNGRADE and CLOSE: OLD_STATEID",
        old
    ),
    rule!(
        "in 4.0, a stateid with a future sequence number is refused",
        "RFC 7530 9.1.4.2",
        "READ with a sequence number 7 ahead: BAD_STATEID",
        ahead
    ),
    rule!(
        "in 4.0, the stateid of another file is refused",
        "RFC 7530 9.1.4.4",
        "READ: BAD_STATEID",
        of_another
    ),
    rule!(
        "in 4.0, the stateid of a closed file is refused",
        "RFC 7530 9.1.4.4",
        "READ: BAD_STATEID",
        of_a_closed_file
    ),
    rule!(
        "in 4.0, WRITE under an open to read is refused",
        "RFC 7530 16.36.5",
        "OPENMODE",
        write_to_read_open
    ),
];

const NONE: ShareDeny = ShareDeny::empty();

const MODES: [(ShareAccess, ShareDeny); 3] = [
    (ShareAccess::READ, ShareDeny::READ),
    (ShareAccess::WRITE, ShareDeny::WRITE),
    (ShareAccess::BOTH, ShareDeny::BOTH),
];

async fn denied(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("denied").await?;
    let client = examiner.v40().await?;
    let mut verdict = Verdict::Pass;
    for (_, deny) in MODES {
        for (access, denies) in MODES {
            let meet = deny.bits() & denies.bits() != 0;
            let (first, second) = ((ShareAccess::BOTH, deny), (access, NONE));
            verdict = verdict.max(both(client, &name, first, second, meet).await?);
        }
    }
    Ok(verdict)
}

async fn would_deny(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("denied").await?;
    let client = examiner.v40().await?;
    let mut verdict = Verdict::Pass;
    for (access, denies) in MODES {
        for (_, deny) in MODES {
            let meet = deny.bits() & denies.bits() != 0;
            let (first, second) = ((access, NONE), (ShareAccess::BOTH, deny));
            verdict = verdict.max(both(client, &name, first, second, meet).await?);
        }
    }
    Ok(verdict)
}

/// Opens a file with one access and deny mode, and with another for another owner. The server must
/// refuse the second if they conflict (`meet`).
async fn both(
    client: &Raw40,
    name: &[u8],
    first: (ShareAccess, ShareDeny),
    second: (ShareAccess, ShareDeny),
    meet: bool,
) -> Result<Verdict> {
    let (mut one, mut two) = (Owner40::new("denies"), Owner40::new("is denied"));
    let opened = client.open(&mut one, name, first.0, first.1).await?;
    let opened = opened.map_err(|error| format!("OPEN of {first:?}: {error}"))?;
    let other = client.open(&mut two, name, second.0, second.1).await?;
    let status = other.clone().map(drop);
    let verdict = if meet { refused(status, &[Error::ShareDenied]) } else { granted(status) };
    let verdict = match verdict {
        Verdict::Fail(why) => Verdict::Fail(format!("{first:?}, then {second:?}: {why}")),
        verdict => verdict,
    };
    if let Ok(other) = other {
        client.close(&mut two, &other).await?.map_err(|error| format!("CLOSE: {error}"))?;
    }
    Ok(verdict.max(granted(client.close(&mut one, &opened).await?)))
}

async fn own_deny(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("denied").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("denies itself");
    let opened = client.open(&mut owner, &name, ShareAccess::READ, ShareDeny::WRITE).await?;
    let opened = opened.map_err(|error| format!("OPEN: {error}"))?;
    let again = client.open(&mut owner, &name, ShareAccess::WRITE, NONE).await?;
    let verdict = refused(again.clone().map(drop), &[Error::ShareDenied]);
    let open = again.unwrap_or(opened);
    Ok(verdict.max(granted(client.close(&mut owner, &open).await?)))
}

async fn undefined_bits(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("bits").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("undefined bits");
    let mut verdict = Verdict::Pass;
    for (access, deny) in [(0, 0), (4, 0), (1, 4)] {
        let (access, deny) =
            (ShareAccess::from_bits_retain(access), ShareDeny::from_bits_retain(deny));
        let opened = client.open(&mut owner, &name, access, deny).await?;
        verdict = verdict.max(refused(opened.clone().map(drop), &[Error::Inval, Error::BadXdr]));
        if let Ok(open) = opened {
            client.close(&mut owner, &open).await?.map_err(|error| format!("CLOSE: {error}"))?;
        }
    }
    Ok(verdict)
}

async fn directory(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.make_dir("directory").await?;
    open_refused(examiner, &name, Error::IsDir).await
}

async fn link(examiner: &mut Examiner) -> Result<Vec<u8>> {
    let name = examiner.new_name("link");
    let set = SetAttr::default();
    examiner.ours.symlink(&Caller::Own, examiner.dir.entry(&name).with(&set), b"target").await?;
    Ok(name)
}

async fn symlink(examiner: &mut Examiner) -> Result<Verdict> {
    let name = link(examiner).await?;
    open_refused(examiner, &name, Error::Symlink).await
}

async fn pipe(examiner: &mut Examiner) -> Result<Verdict> {
    special(examiner, SpecialFile::Fifo).await
}

async fn socket(examiner: &mut Examiner) -> Result<Verdict> {
    special(examiner, SpecialFile::Socket).await
}

async fn special(examiner: &mut Examiner, kind: SpecialFile) -> Result<Verdict> {
    match examiner.make_special(kind).await {
        Ok(name) => open_refused(examiner, &name, Error::Symlink).await,
        Err(error) => Ok(Verdict::Note(format!("it cannot be made: {error}"))),
    }
}

async fn open_refused(examiner: &mut Examiner, name: &[u8], error: Error) -> Result<Verdict> {
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("opens what is no file");
    let opened = client.open(&mut owner, name, ShareAccess::READ, NONE).await?;
    Ok(refused(opened.map(drop), &[error]))
}

async fn lookup_symlink(examiner: &mut Examiner) -> Result<Verdict> {
    let name = link(examiner).await?;
    lookup_refused(examiner, &name, Error::Symlink).await
}

async fn lookup_file(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("file").await?;
    lookup_refused(examiner, &name, Error::NotDir).await
}

async fn lookup_refused(examiner: &mut Examiner, name: &[u8], error: Error) -> Result<Verdict> {
    let client = examiner.v40().await?;
    let ops =
        [Op::Putfh(client.dir.clone()), Op::Lookup(name.into()), Op::Lookup(b"below"[..].into())];
    Ok(refused(client.call(&ops).await?.status, &[error]))
}

/// An open, and its stateid from before an upgrade from reading to reading and writing.
async fn upgraded(client: &Raw40, owner: &mut Owner40, name: &[u8]) -> Result<(RawOpen, StateId)> {
    let before = client.opened(owner, name, ShareAccess::READ).await?.stateid;
    let after = client.opened(owner, name, ShareAccess::BOTH).await?;
    match after.stateid.other == before.other && after.stateid.seqid == before.seqid + 1 {
        true => Ok((after, before)),
        false => Err(format!("{before:?} became {:?} by an upgrade", after.stateid).into()),
    }
}

async fn old(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("upgraded").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("upgrades");
    let (open, before) = upgraded(client, &mut owner, &name).await?;
    let file = &open.handle;
    let write =
        write::Args { stateid: before, offset: 0, stable: StableHow::FileSync, data: "x".into() };
    let size = Attrs { size: Some(1), ..Attrs::default() };
    let setattr = setattr::Args { stateid: before, attrs: size.into() };
    let old = RawOpen { stateid: before, ..open.clone() };
    let expected = &[Error::OldStateId];
    let mut verdict = refused(client.read(file, before).await?, expected);
    verdict = verdict.max(refused(client.on(file, Op::Write(write)).await?.status, expected));
    verdict = verdict.max(refused(client.on(file, Op::Setattr(setattr)).await?.status, expected));
    let locked = client.lock(&mut owner, &old, &mut Owner40::new("locker")).await?;
    verdict = verdict.max(refused(locked.map(drop), expected));
    let downgraded = client.downgrade(&mut owner, file, before, ShareAccess::READ).await?;
    verdict = verdict.max(refused(downgraded, expected));
    verdict = verdict.max(refused(client.close(&mut owner, &old).await?, expected));
    Ok(verdict.max(granted(client.close(&mut owner, &open).await?)))
}

async fn ahead(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("ahead").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("ahead");
    let open = client.opened(&mut owner, &name, ShareAccess::READ).await?;
    let ahead = StateId { seqid: open.stateid.seqid + 7, ..open.stateid };
    let verdict = refused(client.read(&open.handle, ahead).await?, &[Error::BadStateId]);
    Ok(verdict.max(granted(client.close(&mut owner, &open).await?)))
}

async fn of_another(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("one").await?;
    let (_, other) = examiner.create("another").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("mixes files up");
    let open = client.opened(&mut owner, &name, ShareAccess::READ).await?;
    let another = client.opened(&mut owner, &other, ShareAccess::READ).await?;
    let status = client.read(&open.handle, another.stateid).await?;
    let verdict = refused(status, &[Error::BadStateId]);
    let closed = granted(client.close(&mut owner, &another).await?);
    Ok(verdict.max(closed).max(granted(client.close(&mut owner, &open).await?)))
}

async fn of_a_closed_file(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("closed").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("reads a closed file");
    let open = client.opened(&mut owner, &name, ShareAccess::READ).await?;
    let closed = granted(client.close(&mut owner, &open).await?);
    let read = client.read(&open.handle, open.stateid).await?;
    Ok(closed.max(refused(read, &[Error::BadStateId])))
}

async fn write_to_read_open(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("read").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("writes what it reads");
    let open = client.opened(&mut owner, &name, ShareAccess::READ).await?;
    let write = write::Args {
        stateid: open.stateid,
        offset: 0,
        stable: StableHow::FileSync,
        data: "x".into(),
    };
    let status = client.on(&open.handle, Op::Write(write)).await?.status;
    let verdict = refused(status, &[Error::OpenMode]);
    Ok(verdict.max(granted(client.close(&mut owner, &open).await?)))
}
