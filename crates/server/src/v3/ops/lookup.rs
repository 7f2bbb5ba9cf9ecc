//! LOOKUP.

use crate::v3::convert;
use crate::v3::request::{Request, Target};
use weir_nfs::v3::op::lookup::{Args, Found, Res};
use weir_nfs::v3::{Error, Failure};
use weir_vfs::{Attr, FileKind};

pub(in crate::v3) async fn lookup(request: &Request<'_>, args: Args) -> Res {
    let dir = request.target(&args.what.dir)?;
    let found = find(&dir, &args.what.name).await;
    let around = dir.attr().await;
    match found {
        Ok(attr) => {
            Ok(Found { object: dir.handle_of(attr.id), attr: dir.shown(&attr), dir: around })
        }
        Err(status) => Err(Failure { status, rest: around }),
    }
}

/// Looks up a name, including `.` and `..`. The parent of an export's root is the root itself.
async fn find(dir: &Target<'_>, name: &[u8]) -> Result<Attr, Error> {
    let fs = dir.fs();
    let found = match name {
        b"." | b".." => {
            let itself = dir.getattr().await?;
            if itself.kind != FileKind::Directory {
                return Err(Error::NotDir);
            }
            dir.check_search().await?;
            if name == b"." { Ok(itself) } else { fs.parent(dir.id()).await }
        }
        name => fs.lookup(&dir.caller, dir.id().entry(name)).await,
    };
    found.map_err(convert::error)
}
