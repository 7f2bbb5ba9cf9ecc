//! COPY, CLONE, OFFLOAD_STATUS, OFFLOAD_CANCEL (RFC 7862 sections 15.2, 15.13, 15.9, 15.8).
//!
//! A long COPY runs in the background if the server can send the client CB_OFFLOAD and the client
//! does not ask for a synchronous copy. Any other COPY is synchronous and copies at most about
//! [`MAX_COPY_BYTES`] of data: a short copy is legal, and the client asks for the rest.

use crate::operation::copies::Requester;
use crate::state::{ClientId, Use};
use crate::v4::context::{Context, FileIo, Target};
use crate::v4::copy::background::CopyRequest;
use crate::v4::copy::piecewise::{Copying, Step};
use crate::v4::status::{of_handle, of_vfs};
use weir_nfs::v4::Detailed;
use weir_nfs::v4::Error;
use weir_nfs::v4::op::{clone, copy, offload_cancel, offload_status};
use weir_nfs::v4::types::{StableHow, StateId, WriteResponse};
use weir_vfs::Access;
use weir_xdr::List;

/// How much data a synchronous COPY copies, in bytes. Limits how long a COPY occupies its slot.
const MAX_COPY_BYTES: u64 = 64 << 20;

/// The two files of a copy, and the number of bytes to copy.
struct Pair {
    source: FileIo,
    destination: FileIo,
    len: u64,
}

async fn pair(
    cx: &Context,
    stateids: (StateId, StateId),
    offsets: (u64, u64),
    count: u64,
) -> Result<Pair, Error> {
    let (from, to): (Target<'_>, Target<'_>) = (cx.saved()?, cx.current()?);
    if from.node.export != to.node.export {
        return Err(Error::XDev);
    }
    let source = cx.io(&from, stateids.0, Access::READ).await?;
    let destination = cx.io_to_change(&to, stateids.1).await?;
    let left = source.file.size().checked_sub(offsets.0).ok_or(Error::Inval)?;
    let len = if count == 0 { left } else { count };
    if len > left {
        return Err(Error::Inval);
    }
    to.check_size(offsets.1, len)?;
    let overlap = offsets.0 < offsets.1 + len && offsets.1 < offsets.0 + len;
    if from.node == to.node && overlap {
        return Err(Error::Inval);
    }
    Ok(Pair { source, destination, len })
}

pub(crate) async fn clone(cx: &mut Context, args: clone::Args) -> clone::Res {
    let (from, to) = (args.source_offset, args.destination_offset);
    let pair = pair(cx, (args.source, args.destination), (from, to), args.count).await?;
    let Pair { source, destination, .. } = pair;
    let done = destination.file.clone_range_async(&source.file, from, args.count, to).await;
    done.map_err(of_vfs)?;
    cx.changed(&[cx.current()?.node]);
    Ok(())
}

pub(crate) async fn copy(cx: &mut Context, args: copy::Args) -> copy::Res {
    if !args.source_servers.is_empty() {
        return Err(Detailed::Plain(Error::NotSupp));
    }
    let (from, to) = (args.source_offset, args.destination_offset);
    let pair = pair(cx, (args.source, args.destination), (from, to), args.count).await;
    let Pair { source, destination, len } = pair.map_err(Detailed::Plain)?;
    let verifier = cx.services.verifier.get(&destination.file);
    let export = cx.current.map(|node| cx.exports.share(node.export).map_err(of_handle));
    let export = export.unwrap_or(Err(Error::NoFilehandle)).map_err(Detailed::Plain)?;
    let caller = cx.current().map_err(Detailed::Plain)?.caller;
    let whose = (export, cx.peer.addr().ip(), caller);
    let mut copying = Copying::new(whose, (source, from), (destination, to), len);
    let client = cx.known_client().filter(|&id| cx.state().can_call(id));
    if let Some(client) = client
        && !args.synchronous
        && len > MAX_COPY_BYTES
        && cx.services.copies.has_room(client)
    {
        let stateid = in_background(cx, client, [args.source, args.destination], copying)
            .map_err(Detailed::Plain)?;
        let callback_id = vec![stateid].into();
        let committed = StableHow::Unstable;
        let response = WriteResponse { callback_id, count: 0, committed, verifier };
        let requirements = copy::Requirements { consecutive: true, synchronous: false };
        return Ok(copy::Copied { response, requirements });
    }
    let (mut count, mut data) = (0, 0);
    while data < MAX_COPY_BYTES {
        match copying.step().await {
            Ok(Step { bytes: 0, .. }) => break,
            Ok(step) => (count, data) = (count + step.bytes, data + step.data),
            // Report what was copied. The client asks for the rest, and gets the error then.
            Err(_) if count > 0 => break,
            Err(error) => return Err(Detailed::Plain(error)),
        }
    }
    let response = WriteResponse {
        callback_id: List::default(),
        count,
        committed: StableHow::Unstable,
        verifier,
    };
    let requirements = copy::Requirements { consecutive: true, synchronous: true };
    Ok(copy::Copied { response, requirements })
}

/// Starts a copy in the background. Returns its stateid.
fn in_background(
    cx: &Context,
    client: ClientId,
    stateids: [StateId; 2],
    copying: Copying,
) -> Result<StateId, Error> {
    let (from, to) = (cx.saved()?.node, cx.current()?);
    let (node, caller) = (to.node, to.caller);
    let [read, written] = stateids.map(|wire| cx.stateid(wire));
    let uses = [
        Use { under: read?, node: from, access: Access::READ },
        Use { under: written?, node, access: Access::WRITE },
    ];
    let handle = cx.services.exports.seal(node);
    let changing = cx.services.recalls.keep_undelegated(node);
    let by = Requester { identity: cx.identity.clone(), address: cx.peer.addr().ip(), caller };
    let request = CopyRequest { client, node, handle, by, uses, copying, changing };
    Ok(cx.nfs.background.start(request))
}

pub(crate) async fn offload_status(
    cx: &mut Context,
    args: offload_status::Args,
) -> offload_status::Res {
    let (client, node) = (cx.client()?, cx.current()?.node);
    let progress = cx.services.copies.progress(client, cx.state_of(args)?.key, node)?;
    let complete = progress.ended.map(|ended| ended.err().map_or(0, |error| error as u32));
    let complete = complete.into_iter().collect::<Vec<_>>().into();
    Ok(offload_status::Progress { count: progress.copied, complete })
}

pub(crate) async fn offload_cancel(
    cx: &mut Context,
    args: offload_cancel::Args,
) -> offload_cancel::Res {
    let (client, node) = (cx.client()?, cx.current()?.node);
    let key = cx.state_of(args)?.key;
    cx.services.copies.cancel(client, key, node).await
}
