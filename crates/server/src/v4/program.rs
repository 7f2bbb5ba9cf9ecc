//! NFSv4 as an RPC program: NULL and COMPOUND.

use crate::peer::Peer;
use crate::program::{Call, Program, ProgramId, Refusal};
use crate::v4::nfs4::Nfs4;
use crate::v4::retransmission;
use async_trait::async_trait;
use std::sync::Arc;
use weir_nfs::v4;
use weir_xdr::Encoder;

#[async_trait]
impl Program for Nfs4 {
    fn id(&self) -> ProgramId {
        ProgramId { program: v4::PROGRAM, version: v4::VERSION }
    }

    async fn call(self: Arc<Self>, call: Call, reply: Encoder) -> Result<Encoder, Refusal> {
        match call.header.procedure {
            v4::PROC_NULL => Ok(reply),
            v4::PROC_COMPOUND => {
                let identity = self.services.exports.identify(&call).await?;
                retransmission::run(self, identity, call, reply).await
            }
            _ => Err(Refusal::NoSuchProcedure),
        }
    }

    fn disconnected(&self, peer: &Peer) {
        self.services.callbacks.forget(peer.id());
    }

    fn needs(&self, peer: &Peer) -> bool {
        self.services.callbacks.needs(peer.id())
    }
}
