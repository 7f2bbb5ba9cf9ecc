//! NULL, FSSTAT, FSINFO, PATHCONF.

use crate::v3::convert;
use crate::v3::request::{Request, Target};
use weir_nfs::v3::op::fsinfo::{self, Info, Properties};
use weir_nfs::v3::op::fsstat::{self, Space};
use weir_nfs::v3::op::null;
use weir_nfs::v3::op::pathconf::{self, Limits};
use weir_nfs::v3::types::Time;
use weir_nfs::v3::{Error, Failure};
use weir_vfs::FsStat;

/// Maximum bytes of a READ or WRITE.
pub(super) const MAX_IO_BYTES: u32 = 1 << 20;
/// Preferred bytes of a READDIR.
const READDIR_BYTES: u32 = 64 << 10;

pub(in crate::v3) async fn null(_: &Request<'_>, _: null::Args) -> null::Res {}

pub(in crate::v3) async fn fsstat(request: &Request<'_>, args: fsstat::Args) -> fsstat::Res {
    let root = request.target(&args.root)?;
    let stat = statfs(&root).await;
    let attr = root.attr().await;
    match stat {
        Ok(stat) => Ok(Space {
            attr,
            total_bytes: stat.total_bytes,
            free_bytes: stat.free_bytes,
            available_bytes: stat.available_bytes,
            total_files: stat.total_files,
            free_files: stat.free_files,
            available_files: stat.free_files,
            invariant_seconds: 0,
        }),
        Err(status) => Err(Failure { status, rest: attr }),
    }
}

pub(in crate::v3) async fn fsinfo(request: &Request<'_>, args: fsinfo::Args) -> fsinfo::Res {
    let root = request.target(&args.root)?;
    let stat = statfs(&root).await;
    let attr = root.attr().await;
    match stat {
        Ok(stat) => Ok(Info {
            attr,
            read_max: MAX_IO_BYTES,
            read_preferred: MAX_IO_BYTES,
            read_multiple: 4096,
            write_max: MAX_IO_BYTES,
            write_preferred: MAX_IO_BYTES,
            write_multiple: 4096,
            readdir_preferred: READDIR_BYTES,
            max_file_size: stat.max_file_size,
            time_delta: Time { seconds: 0, nseconds: 1 },
            properties: Properties::all(),
        }),
        Err(status) => Err(Failure { status, rest: attr }),
    }
}

pub(in crate::v3) async fn pathconf(request: &Request<'_>, args: pathconf::Args) -> pathconf::Res {
    let object = request.target(&args.object)?;
    let stat = statfs(&object).await;
    let attr = object.attr().await;
    match stat {
        Ok(stat) => Ok(Limits {
            attr,
            link_max: stat.max_links,
            name_max: stat.max_name,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        }),
        Err(status) => Err(Failure { status, rest: attr }),
    }
}

/// The file system's counts, if the file exists.
async fn statfs(file: &Target<'_>) -> Result<FsStat, Error> {
    file.getattr().await?;
    file.fs().statfs().await.map_err(convert::error)
}
