//! The NFSACL protocol: POSIX access control lists of files, addressed by NFSv3 filehandles.

use super::convert;
use super::nfs3::Nfs3;
use super::program::{Execute, Results};
use super::request::{Request, Target, durable};
use crate::metrics::{Outcome, Row};
use crate::operation::reply_cache::Keep;
use crate::program::{Call, Program, ProgramId, Refusal};
use crate::state::Touch;
use async_trait::async_trait;
use std::sync::Arc;
use weir_nfs::nfsacl::{
    self, DEFAULT_TAG, Entries, Entry, Getacl, GetaclRes, Lists, MAX_ENTRIES, Mask, Procedure,
    Setacl, SetaclRes,
};
use weir_nfs::v3::{Error, Failure};
use weir_vfs::{Acl, AclKind, AclRights, AclWho, Attr, FileKind, tag_of};
use weir_xdr::{Decoder, Encoder};

/// NFSACL version 3.
#[derive(Debug)]
pub struct NfsAcl3 {
    nfs: Arc<Nfs3>,
}

impl NfsAcl3 {
    /// Serves the ACLs of the files that `nfs` serves.
    pub fn new(nfs: Arc<Nfs3>) -> Self {
        Self { nfs }
    }
}

#[async_trait]
impl Program for NfsAcl3 {
    fn id(&self) -> ProgramId {
        ProgramId { program: nfsacl::PROGRAM, version: nfsacl::VERSION }
    }

    async fn call(self: Arc<Self>, call: Call, reply: Encoder) -> Result<Encoder, Refusal> {
        let procedure = Procedure::from_number(call.header.procedure);
        match procedure.ok_or(Refusal::NoSuchProcedure)? {
            Procedure::Null => Ok(reply),
            procedure => self.nfs.answer(procedure, call, reply).await,
        }
    }
}

impl Execute for Procedure {
    fn keep(self) -> Keep {
        match self {
            // Executed twice, it could undo the change of another client in between.
            Self::Setacl => Keep::Reply,
            Self::Null | Self::Getacl => Keep::Nothing,
        }
    }

    fn row(self) -> Row {
        Row::Acl(self)
    }

    async fn execute(
        self,
        request: &Request<'_>,
        args: &mut Decoder,
        reply: &mut Encoder,
    ) -> Result<Outcome, Refusal> {
        match self {
            Self::Null => Ok(Outcome::Done),
            Self::Getacl => {
                let results = getacl(request, args.get()?).await;
                reply.put(&results);
                Ok(results.outcome())
            }
            Self::Setacl => {
                let results = setacl(request, args.get()?).await;
                reply.put(&results);
                Ok(results.outcome())
            }
        }
    }
}

async fn getacl(request: &Request<'_>, args: Getacl) -> GetaclRes {
    let file = request.target(&args.file)?;
    let attr = file.getattr().await?;
    match lists(&file, &attr, args.mask).await {
        Ok(lists) => Ok(lists),
        Err(status) => Err(Failure { status, rest: file.shown(&attr) }),
    }
}

async fn lists(file: &Target<'_>, attr: &Attr, mask: Mask) -> Result<Lists, Error> {
    if !Mask::all().contains(mask) {
        return Err(Error::Inval);
    }
    let get = async |kind| file.fs().get_acl(file.id().acl(kind)).await.map_err(convert::error);
    let mut lists = Lists {
        attr: file.shown(attr),
        mask,
        access: Entries::default(),
        default: Entries::default(),
    };
    if mask.intersects(Mask::ACCESS | Mask::ACCESS_COUNT) {
        let acl = match attr.kind {
            FileKind::Symlink => None,
            _ => get(AclKind::Access).await?,
        };
        let acl = acl.unwrap_or_else(|| Acl::of_mode(attr.mode));
        lists.access = to_wire(&acl, attr, 0, mask.contains(Mask::ACCESS))?;
    }
    if mask.intersects(Mask::DEFAULT | Mask::DEFAULT_COUNT)
        && attr.kind == FileKind::Directory
        && let Some(acl) = get(AclKind::Default).await?
    {
        lists.default = to_wire(&acl, attr, DEFAULT_TAG, mask.contains(Mask::DEFAULT))?;
    }
    Ok(lists)
}

async fn setacl(request: &Request<'_>, args: Setacl) -> SetaclRes {
    let file = request.target(&args.file)?;
    let set = set(&file, &args).await;
    match durable(&file, set, |()| vec![file.id()]).await {
        Ok(()) => Ok(file.attr().await),
        Err(status) => Err(Failure { status, rest: file.attr().await }),
    }
}

async fn set(file: &Target<'_>, args: &Setacl) -> Result<(), Error> {
    if !Mask::all().contains(args.mask) {
        return Err(Error::Inval);
    }
    file.check_writable()?;
    // Decode both lists before setting either.
    let asked = |bit, entries| match args.mask.contains(bit) {
        true => from_wire(entries).map(Some),
        false => Ok(None),
    };
    let access = asked(Mask::ACCESS, &args.access)?;
    let default = asked(Mask::DEFAULT, &args.default)?;
    let _claim = file.claim(Touch::Change).await?;
    for (kind, acl) in [(AclKind::Access, access), (AclKind::Default, default)] {
        if let Some(acl) = acl {
            let set = file.fs().set_acl(&file.caller, file.id().acl(kind), acl.as_ref()).await;
            file.rights_changed();
            set.map_err(convert::error)?;
        }
    }
    Ok(())
}

/// Encodes an ACL. On the wire every list has a mask entry.
fn to_wire(acl: &Acl, attr: &Attr, flag: u32, with_entries: bool) -> Result<Entries, Error> {
    let mut entries: Vec<Entry> = Vec::new();
    for &(who, rights) in acl.entries() {
        if who == AclWho::Other && acl.is_minimal() {
            let group = acl.get(AclWho::Group).unwrap_or(0);
            entries.push(entry(AclWho::Mask, group, attr, flag));
        }
        entries.push(entry(who, rights, attr, flag));
    }
    if entries.len() > MAX_ENTRIES {
        return Err(Error::TooSmall);
    }
    let count = entries.len() as u32;
    Ok(Entries { count, entries: if with_entries { entries } else { Vec::new() }.into() })
}

fn entry(who: AclWho, rights: AclRights, attr: &Attr, flag: u32) -> Entry {
    let (tag, id) = tag_of(who);
    let id = match who {
        AclWho::Owner => attr.uid,
        AclWho::Group => attr.gid,
        _ => id.unwrap_or(0),
    };
    Entry { tag: tag | flag, id, rights: rights.into() }
}

/// Decodes an ACL; `None` for a list without entries.
fn from_wire(list: &Entries) -> Result<Option<Acl>, Error> {
    if list.entries.0.is_empty() {
        return Ok(None);
    }
    let (mask, _) = tag_of(AclWho::Mask);
    let entry = |entry: &Entry| {
        let tag = entry.tag & !DEFAULT_TAG;
        // Solaris sends additional bits in masks.
        let rights = if tag == mask { entry.rights & 7 } else { entry.rights };
        (tag, entry.id, rights)
    };
    Acl::from_nfsacl(list.entries.0.iter().map(entry)).map(Some).map_err(convert::error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(list: &[(u32, u32, u32)]) -> Entries {
        let entries: Vec<_> =
            list.iter().map(|&(tag, id, rights)| Entry { tag, id, rights }).collect();
        Entries { count: entries.len() as u32, entries: entries.into() }
    }

    #[test]
    fn acls_are_decoded_from_the_wire() {
        let minimal = entries(&[(1, 9, 6), (4, 9, 4), (0x10, 0, 4), (0x20, 0, 0)]);
        assert_eq!(from_wire(&minimal), Ok(Some(Acl::of_mode(0o640))));
        let masked = entries(&[(1, 9, 6), (4, 9, 6), (0x10, 0, 0xfffc), (0x20, 0, 0)]);
        let acl = from_wire(&masked).unwrap().unwrap();
        assert_eq!((acl.mode(), acl.get(AclWho::Group)), (0o640, Some(6)));
        let default = entries(&[(0x1001, 0, 7), (0x1004, 0, 5), (0x1010, 0, 5), (0x1020, 0, 5)]);
        assert_eq!(from_wire(&default), Ok(Some(Acl::of_mode(0o755))));
        assert_eq!(from_wire(&Entries::default()), Ok(None));
        for bad in [
            &[(1, 0, 6), (4, 0, 4)][..],
            &[(1, 0, 8), (4, 0, 4), (0x20, 0, 0)],
            &[(1, 0, 6), (4, 0, 4), (0x20, 0, 0), (3, 0, 0)],
            &[(1, 0, 256 + 6), (4, 0, 4), (0x20, 0, 0)],
        ] {
            assert_eq!(from_wire(&entries(bad)), Err(Error::Inval), "{bad:?}");
        }
    }
}
