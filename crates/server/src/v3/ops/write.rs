//! WRITE, COMMIT.

use super::info::MAX_IO_BYTES;
use crate::state::Touch;
use crate::v3::convert;
use crate::v3::request::{Request, Target};
use weir_nfs::v3::op::commit::{self, Committed};
use weir_nfs::v3::op::write::{self, Stability, Written};
use weir_nfs::v3::types::Verifier;
use weir_nfs::v3::{Error, Failure};
use weir_vfs::Access;

pub(in crate::v3) async fn write(request: &Request<'_>, args: write::Args) -> write::Res {
    let file = request.target(&args.file)?;
    let stable = args.stable;
    let written = write_checked(&file, args).await;
    let wcc = file.wcc().await;
    match written {
        Ok((count, verifier)) => Ok(Written { file: wcc, count, committed: stable, verifier }),
        Err(status) => Err(Failure { status, rest: wcc }),
    }
}

async fn write_checked(file: &Target<'_>, args: write::Args) -> Result<(u32, Verifier), Error> {
    file.check_writable()?;
    let count = args.count.min(MAX_IO_BYTES);
    let data = args.data.to_bytes();
    let data = data.get(..count as usize).ok_or(Error::Inval)?;
    file.check_grace()?;
    let _claim = file.claim(Touch::Change).await?;
    let (open, attr) = file.open(Access::WRITE).await?;
    file.clear_set_id(&attr).await?;
    // Nothing waits between this check and the write, so that an abandoned WRITE is not executed
    // late.
    file.check_connected()?;
    let flags = file.write_flags(&open, args.offset, data.len());
    let (verifier, errors) = (file.verifier().get(&open), open.write_errors());
    let written = open.write_at_async(data, args.offset, flags).await;
    let written = written.map_err(convert::error)?;
    file.export.counts.written(written);
    if args.stable != Stability::Unstable {
        let range = args.offset..args.offset.saturating_add(written as u64);
        let data_only = args.stable == Stability::DataSync;
        let synced = file.verifier().sync(&open, errors, range, data_only).await;
        synced.map_err(convert::error)?;
    }
    // At most `count`, which is a u32.
    Ok((written as u32, verifier))
}

pub(in crate::v3) async fn commit(request: &Request<'_>, args: commit::Args) -> commit::Res {
    let file = request.target(&args.file)?;
    let committed = commit_checked(&file, &args).await;
    let wcc = file.wcc().await;
    match committed {
        Ok(verifier) => Ok(Committed { file: wcc, verifier }),
        Err(status) => Err(Failure { status, rest: wcc }),
    }
}

async fn commit_checked(file: &Target<'_>, args: &commit::Args) -> Result<Verifier, Error> {
    file.check_writable()?;
    let (open, _) = file.open(Access::WRITE).await?;
    file.verifier().commit(&open, args.offset, args.count).await.map_err(convert::error)
}
