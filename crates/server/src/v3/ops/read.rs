//! READ.

use super::info::MAX_IO_BYTES;
use crate::operation::gather;
use crate::state::Touch;
use crate::v3::convert;
use crate::v3::request::Request;
use std::sync::Arc;
use weir_nfs::Data;
use weir_nfs::v3::Failure;
use weir_nfs::v3::op::read::{Args, Read, Res};
use weir_vfs::Access;
use weir_xdr::Payload;

pub(in crate::v3) async fn read(request: &Request<'_>, args: Args) -> Res {
    let file = request.target(&args.file)?;
    let opened = async {
        file.check_grace()?;
        let claim = file.claim(Touch::Read).await?;
        let (open, attr) = file.open(Access::READ).await?;
        Ok((open, attr, claim))
    };
    let (open, attr, _claim) = match opened.await {
        Ok(opened) => opened,
        Err(status) => return Err(Failure { status, rest: file.attr().await }),
    };
    // From before the read, so that a client never associates old data with newer attributes.
    let attr = Some(convert::attr(&attr));
    let (offset, count) = (args.offset, args.count.min(MAX_IO_BYTES) as usize);
    match gather::read_data(&open, offset, count, request.reader(), file.export).await {
        Ok(gather::Data { gathered, eof }) => {
            // At most the requested count, which is a u32.
            let count = gathered.len() as u32;
            Ok(Read { attr, count, eof, data: Data::Shared(Arc::new(gathered)) })
        }
        Err(error) => Err(Failure { status: convert::error(error), rest: attr }),
    }
}
