//! SEEK, ALLOCATE, DEALLOCATE, IO_ADVISE (RFC 7862 sections 15.11, 15.1, 15.4, 15.5).

use crate::v4::context::Context;
use crate::v4::status::of_vfs;
use weir_nfs::v4::op::io_advise::Hint;
use weir_nfs::v4::op::{allocate, deallocate, io_advise, seek};
use weir_nfs::v4::types::Content;
use weir_nfs::v4::{Bitmap, Error};
use weir_vfs::{Access, Advice, SegmentKind};

pub(crate) async fn seek(cx: &mut Context, args: seek::Args) -> seek::Res {
    let target = cx.current()?;
    let io = cx.io(&target, args.stateid, Access::READ).await?;
    let wanted = match args.what {
        Content::Data => SegmentKind::Data,
        Content::Hole => SegmentKind::Hole,
    };
    let mut at = args.offset;
    loop {
        match io.file.extent_at_async(at).await {
            Ok(extent) if extent.kind == wanted => {
                return Ok(seek::Found { eof: false, offset: at });
            }
            Ok(extent) => at = extent.end,
            // The search has reached the end of the file.
            Err(weir_vfs::Error::NoSuchRange) if at > args.offset => {
                return Ok(seek::Found { eof: true, offset: at });
            }
            Err(error) => return Err(of_vfs(error)),
        }
    }
}

pub(crate) async fn allocate(cx: &mut Context, args: allocate::Args) -> allocate::Res {
    let target = cx.current()?;
    let io = cx.io_to_change(&target, args.stateid).await?;
    check_range(args.offset, args.length)?;
    io.file.allocate_async(args.offset, args.length).await.map_err(of_vfs)?;
    cx.changed(&[target.node]);
    Ok(())
}

pub(crate) async fn deallocate(cx: &mut Context, args: deallocate::Args) -> deallocate::Res {
    let target = cx.current()?;
    let io = cx.io_to_change(&target, args.stateid).await?;
    check_range(args.offset, args.length)?;
    io.file.punch_hole_async(args.offset, args.length).await.map_err(of_vfs)?;
    cx.changed(&[target.node]);
    Ok(())
}

fn check_range(offset: u64, length: u64) -> Result<(), Error> {
    match offset.checked_add(length) {
        None => Err(Error::FBig),
        Some(_) if length == 0 => Err(Error::Inval),
        Some(end) if end > i64::MAX as u64 => Err(Error::FBig),
        Some(_) => Ok(()),
    }
}

/// The hints that the page cache supports, strongest first. Contradictory hints are not an error
/// (RFC 7862 section 15.5.3).
const HEEDED: [(Hint, Advice); 6] = [
    (Hint::NoReuse, Advice::NoReuse),
    (Hint::DontNeed, Advice::DontNeed),
    (Hint::WillNeed, Advice::WillNeed),
    (Hint::Random, Advice::Random),
    (Hint::Sequential, Advice::Sequential),
    (Hint::Normal, Advice::Normal),
];

pub(crate) async fn io_advise(cx: &mut Context, args: io_advise::Args) -> io_advise::Res {
    let target = cx.current()?;
    let readable = cx.io(&target, args.stateid, Access::READ).await;
    let io = match readable {
        Err(Error::OpenMode) => cx.io(&target, args.stateid, Access::WRITE).await?,
        io => io?,
    };
    let len = if args.count == 0 { u64::MAX - args.offset } else { args.count };
    let mut heeded = Bitmap::EMPTY;
    for (hint, advice) in HEEDED {
        if args.hints.contains(hint as u32) && io.file.advise(args.offset, len, advice).is_ok() {
            heeded.insert(hint as u32);
        }
    }
    Ok(heeded)
}
