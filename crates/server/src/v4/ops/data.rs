//! READ, WRITE, COMMIT (RFC 8881 sections 18.22, 18.32, 18.3). READ_PLUS: [`super::read_plus`].

use crate::operation::gather;
use crate::v4::context::Context;
use crate::v4::status::of_vfs;
use std::sync::Arc;
use weir_nfs::Data;
use weir_nfs::v4::Error;
use weir_nfs::v4::OpCode;
use weir_nfs::v4::op::{commit, read as read_op, write};
use weir_nfs::v4::types::StableHow;
use weir_vfs::{Access, IoFlags};

pub(crate) async fn read(cx: &mut Context, args: read_op::Args) -> read_op::Res {
    let target = cx.current()?;
    let io = cx.io(&target, args.stateid, Access::READ).await?;
    let bytes_left =
        cx.reply_bytes_left.saturating_sub(OpCode::Read.reply_bound().fixed_bytes()) & !3;
    let count = bytes_left.min(args.count as usize);
    let data = gather::read_data(&io.file, args.offset, count, cx.reader(), target.export);
    let gather::Data { gathered, eof } = data.await.map_err(of_vfs)?;
    Ok(read_op::Read { eof, data: Data::Shared(Arc::new(gathered)) })
}

pub(crate) async fn write(cx: &mut Context, args: write::Args) -> write::Res {
    let target = cx.current()?;
    let io = cx.io_to_change(&target, args.stateid).await?;
    let flags = match args.stable {
        StableHow::Unstable => IoFlags::empty(),
        StableHow::DataSync => IoFlags::DSYNC,
        StableHow::FileSync => IoFlags::SYNC,
    };
    // Read before the write: if the written data is lost, the verifier changes after this point, so
    // the client notices.
    let verifier = cx.services.verifier.get(&io.file);
    if args.offset.checked_add(args.data.len() as u64).is_none() {
        return Err(Error::FBig);
    }
    let bytes = args.data.to_bytes();
    let peer = cx.peer.addr().ip();
    let flags = flags | target.export.write_flags(peer, &io.file, args.offset, bytes.len());
    // If the sync fails, the cache counts the error, which changes the verifier.
    let written = io.file.write_at_async(&bytes, args.offset, flags).await.map_err(of_vfs)?;
    target.export.counts.written(written);
    Ok(write::Written { count: written as u32, committed: args.stable, verifier })
}

pub(crate) async fn commit(cx: &mut Context, args: commit::Args) -> commit::Res {
    if args.offset.checked_add(args.count.into()).is_none() {
        return Err(Error::Inval);
    }
    let target = cx.current()?;
    let attr = target.attr().await?;
    if attr.kind != weir_vfs::FileKind::Regular {
        return Err(cx.wrong_type(&target).await);
    }
    // The file that was written to reports the errors of its writes.
    let writer = cx.state().writer(cx.known_client(), &cx.principal, target.node);
    let file = match writer {
        Some(file) => file,
        None => {
            let opened = target.export.open_for_io(&target.caller, target.node.id, Access::WRITE);
            opened.await.map_err(of_vfs)?
        }
    };
    cx.services.verifier.commit(&file, args.offset, args.count).await.map_err(of_vfs)
}
