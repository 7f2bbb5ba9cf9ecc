//! GETATTR, SETATTR, ACCESS.

use crate::state::Touch;
use crate::v3::convert;
use crate::v3::request::{Request, Target, durable};
use weir_nfs::v3::op::access::{self, Granted, Rights};
use weir_nfs::v3::op::{getattr, setattr};
use weir_nfs::v3::types::{Time, WccData};
use weir_nfs::v3::{Error, Failure};
use weir_vfs::{Access, Attr, FileKind, Permissions, SetAttr};

pub(in crate::v3) async fn getattr(request: &Request<'_>, args: getattr::Args) -> getattr::Res {
    let file = request.target(&args.object)?;
    Ok(convert::attr(&file.newest_attr().await?))
}

pub(in crate::v3) async fn setattr(request: &Request<'_>, args: setattr::Args) -> setattr::Res {
    let file = request.target(&args.object)?;
    let set = set_checked(&file, &args).await;
    match durable(&file, set, |_| vec![file.id()]).await {
        Ok(Some(attr)) => Ok(WccData { before: None, after: Some(convert::attr(&attr)) }),
        Ok(None) => Ok(file.wcc().await),
        Err(status) => Err(Failure { status, rest: file.wcc().await }),
    }
}

/// Returns the new attributes, if the store has returned them.
async fn set_checked(file: &Target<'_>, args: &setattr::Args) -> Result<Option<Attr>, Error> {
    file.check_writable()?;
    let _claim = file.claim(Touch::Change).await?;
    let mut set = convert::set_attr(&args.set)?;
    if let Some(guard) = args.guard {
        check_guard(file, guard).await?;
    }
    if let Some(size) = set.size.take() {
        set_size(file, size).await?;
    }
    if set != SetAttr::default() || args.set.size.is_none() {
        let set = file.fs().setattr(&file.caller, file.id(), &set).await;
        // Also after a failure, which may have applied some of the attributes.
        file.rights_changed();
        return set.map(Some).map_err(convert::error);
    }
    Ok(None)
}

async fn check_guard(file: &Target<'_>, guard: Time) -> Result<(), Error> {
    let ctime = convert::time(file.getattr().await?.ctime);
    if ctime == guard { Ok(()) } else { Err(Error::NotSync) }
}

/// Truncates or extends a file, with the rights that a WRITE needs.
pub(super) async fn set_size(file: &Target<'_>, size: u64) -> Result<(), Error> {
    file.check_grace()?;
    let (open, attr) = file.open(Access::WRITE).await?;
    file.clear_set_id(&attr).await?;
    open.truncate_async(size).await.map_err(convert::error)
}

pub(in crate::v3) async fn access(request: &Request<'_>, args: access::Args) -> access::Res {
    let file = request.target(&args.object)?;
    let attr = file.getattr().await?;
    let fs = file.fs();
    match fs.access(&file.caller, file.id(), Permissions::all()).await {
        Ok(has) => {
            let mut rights = rights(has, attr.kind == FileKind::Directory);
            if file.check_writable().is_err() {
                rights -= Rights::MODIFY | Rights::EXTEND | Rights::DELETE;
            }
            Ok(Granted { attr: file.shown(&attr), rights: rights & args.rights })
        }
        Err(error) => Err(Failure { status: convert::error(error), rest: file.shown(&attr) }),
    }
}

/// Maps permissions to access rights of a file or directory. To change entries, a caller needs
/// write and search permission on the directory.
fn rights(has: Permissions, is_dir: bool) -> Rights {
    let mut rights = Rights::empty();
    rights.set(Rights::READ, has.contains(Permissions::READ));
    if is_dir {
        let change = has.contains(Permissions::WRITE | Permissions::EXECUTE);
        rights.set(Rights::LOOKUP, has.contains(Permissions::EXECUTE));
        rights.set(Rights::MODIFY | Rights::EXTEND | Rights::DELETE, change);
    } else {
        rights.set(Rights::EXECUTE, has.contains(Permissions::EXECUTE));
        rights.set(Rights::MODIFY | Rights::EXTEND, has.contains(Permissions::WRITE));
    }
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_bits_of_files_and_directories() {
        let change = Rights::MODIFY | Rights::EXTEND;
        let all = Permissions::all();
        assert_eq!(rights(all, false), Rights::READ | change | Rights::EXECUTE);
        assert_eq!(rights(all, true), Rights::READ | Rights::LOOKUP | change | Rights::DELETE);
        assert_eq!(rights(Permissions::READ | Permissions::WRITE, true), Rights::READ);
        assert_eq!(rights(Permissions::EXECUTE, true), Rights::LOOKUP);
        assert_eq!(rights(Permissions::WRITE, false), change);
    }
}
