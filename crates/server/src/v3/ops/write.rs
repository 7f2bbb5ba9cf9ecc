//! WRITE, COMMIT.

use super::info::MAX_IO_BYTES;
use crate::state::Touch;
use crate::v3::convert;
use crate::v3::request::{Request, Target};
use weir_nfs::v3::op::commit::{self, Committed};
use weir_nfs::v3::op::write::{self, Stability, Written};
use weir_nfs::v3::{Error, Failure};
use weir_vfs::Access;

pub(in crate::v3) async fn write(request: &Request<'_>, args: write::Args) -> write::Res {
    let file = request.target(&args.file)?;
    let stable = args.stable;
    let verifier = request.nfs.committer.verifier().get();
    let written = write_checked(&file, args).await;
    let wcc = file.wcc().await;
    match written {
        Ok(count) => Ok(Written { file: wcc, count, committed: stable, verifier }),
        Err(status) => Err(Failure { status, rest: wcc }),
    }
}

async fn write_checked(file: &Target<'_>, args: write::Args) -> Result<u32, Error> {
    file.check_writable()?;
    let count = args.count.min(MAX_IO_BYTES);
    let data = args.data.to_bytes();
    let data = data.get(..count as usize).ok_or(Error::Inval)?;
    let _claim = file.claim(Touch::Change).await?;
    let (open, attr) = file.open(Access::WRITE).await?;
    file.shed_privileges(&attr).await?;
    let flags = file.write_flags(&open, args.offset, data.len());
    let written = open.write_at_async(data, args.offset, flags).await;
    let written = written.map_err(convert::error)?;
    file.export.counts.written(written);
    match args.stable {
        Stability::Unstable => {}
        Stability::DataSync => open.sync_async(true).await.map_err(convert::error)?,
        Stability::FileSync => open.sync_async(false).await.map_err(convert::error)?,
    }
    // Never more than `count`, which is of that type.
    Ok(written as u32)
}

pub(in crate::v3) async fn commit(request: &Request<'_>, args: commit::Args) -> commit::Res {
    let file = request.target(&args.file)?;
    let verifier = request.nfs.committer.verifier().get();
    let committed = commit_checked(request, &file, &args).await;
    let wcc = file.wcc().await;
    match committed {
        Ok(()) => Ok(Committed { file: wcc, verifier }),
        Err(status) => Err(Failure { status, rest: wcc }),
    }
}

async fn commit_checked(
    request: &Request<'_>,
    file: &Target<'_>,
    args: &commit::Args,
) -> Result<(), Error> {
    file.check_writable()?;
    let (open, _) = file.open(Access::WRITE).await?;
    request
        .nfs
        .committer
        .verifier()
        .commit(&open, args.offset, args.count)
        .await
        .map_err(convert::error)
}
