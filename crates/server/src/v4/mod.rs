//! NFSv4: compounds of operations, executed one by one.
//!
//! - `compound`: the frame: order, gates, replies kept and replayed.
//! - `context`: where a compound stands.
//! - `ops`: the operations, in small families.
//! - `plan`: what READ_PLUS sends. `copying`: COPY, piece by piece. `pattern`: what WRITE_SAME writes.
//! - `owners`: the order of requests in minor version 0. `attrs`, `acl`: attributes. `status`:
//!   errors. `idmap`: owners.

mod acl;
mod attrs;
mod compound;
mod context;
pub(crate) mod copy;
mod idmap;
mod ops;
mod owner_seqid;
mod status;
#[cfg(test)]
mod tests;

pub(crate) use copy::piecewise::{Copying, Piece, Step};
pub(crate) use idmap::IdMap;
pub(crate) use owner_seqid::OwnerTable;
pub(crate) use status::of_state;

use crate::program::{Call, Program, ProgramId, Refusal};
use crate::server::Core;
use crate::transport::Peer;
use async_trait::async_trait;
use std::sync::Arc;
use weir_nfs::v4;
use weir_xdr::Encoder;

/// The program NFS, version 4.
pub(crate) struct Nfs4 {
    core: Arc<Core>,
}

impl Nfs4 {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }
}

#[async_trait]
impl Program for Nfs4 {
    fn id(&self) -> ProgramId {
        ProgramId { program: v4::PROGRAM, version: v4::VERSION }
    }

    async fn call(self: Arc<Self>, call: Call, reply: Encoder) -> Result<Encoder, Refusal> {
        match call.header.procedure {
            v4::PROC_NULL => Ok(reply),
            v4::PROC_COMPOUND => {
                let identity = call.identify().await?;
                compound::run(self.core.clone(), identity, call, reply).await
            }
            _ => Err(Refusal::NoSuchProcedure),
        }
    }

    fn disconnected(&self, peer: &Peer) {
        self.core.callbacks.forget(peer.id());
    }
}
