//! READ.

use super::info::MAX_IO_BYTES;
use crate::gather;
use crate::v3::convert;
use crate::v3::request::{Request, Target};
use std::sync::Arc;
use weir_nfs::Data;
use weir_nfs::v3::op::read::{Args, Read, Res};
use weir_nfs::v3::{Error, Failure};
use weir_vfs::Access;
use weir_xdr::Payload;

pub(in crate::v3) async fn read(request: &Request<'_>, args: Args) -> Res {
    let file = request.target(&args.file)?;
    let read = read_checked(request, &file, args).await;
    let attr = file.attr().await;
    match read {
        Ok((data, eof)) => {
            // Never more than was asked for, which is of that type.
            let count = data.len() as u32;
            Ok(Read { attr, count, eof, data })
        }
        Err(status) => Err(Failure { status, rest: attr }),
    }
}

async fn read_checked(
    request: &Request<'_>,
    file: &Target<'_>,
    args: Args,
) -> Result<(Data, bool), Error> {
    let open = file.export.open_for_io(&file.caller, file.id(), Access::READ).await;
    let open = open.map_err(convert::error)?;
    let (offset, count) = (args.offset, args.count.min(MAX_IO_BYTES) as usize);
    let read = gather::read(&open, offset, count, request.peer).await;
    let (segments, reserved) = read.map_err(convert::error)?;
    let (reaches_end, end) = (segments.eof, segments.end(offset));
    let data = gather::flatten(segments, count, reserved);
    // A hole may be known to the end of file, past what was asked for.
    let eof = reaches_end && end <= offset.saturating_add(data.len() as u64);
    Ok((Data::Shared(Arc::new(data)), eof))
}
