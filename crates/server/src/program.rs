//! The interface between the transport and RPC programs.
//!
//! A [`Program`] is one version of one RPC program (NFS 4, NFS 3, MOUNT 3). The transport reads
//! records, decodes the call's header, finds the program, and polls the future that
//! [`Program::call`] returns once, on the connection's own task. A call that does not wait is
//! answered at once. A future that must wait moves to its own task, so that it does not delay the
//! calls behind it. So an implementation is one plain async function.
//!
//! 1. `reply` already holds the header of a successful reply. The program appends its results and
//!    returns it. The transport discards it if the program refuses the call.
//! 2. A program must not panic on anything that a peer sends. `?` on a decoding error refuses the
//!    call with GARBAGE_ARGS.
//! 3. A program reserves memory for large results before it builds them ([`ReplyMemory`]), so that
//!    a peer that does not read its replies holds a bounded amount of memory.
//!
//! ```ignore
//! #[async_trait]
//! impl Program for Mount3 {
//!     fn id(&self) -> ProgramId { ProgramId { program: 100_005, version: 3 } }
//!     async fn call(self: Arc<Self>, mut call: Call, mut reply: Encoder) -> Result<Encoder, Refusal> {
//!         match call.header.procedure {
//!             0 => {}
//!             1 => { let args: MountArgs = call.args.get()?; reply.put(&self.mount(args).await); }
//!             _ => return Err(Refusal::NoSuchProcedure),
//!         }
//!         Ok(reply)
//!     }
//! }
//! ```

use crate::admission::{Identity, Taken};
use crate::peer::Peer;
use crate::replies::ReplyMemory;
use async_trait::async_trait;
use std::sync::Arc;
use weir_rpc::{
    AcceptStatus, AuthFlavor, AuthStatus, CallHeader, Denial, OpaqueAuth, ReplyBody, VersionRange,
};
use weir_xdr::{Decoder, Encoder};

pub use weir_rpc::ProgramId;

/// A call, decoded up to its arguments.
#[derive(Debug)]
pub struct Call {
    /// Transaction id, procedure and credential.
    pub header: CallHeader,
    /// The arguments.
    pub args: Decoder,
    /// The connection that the call came over.
    pub peer: Arc<Peer>,
    /// The memory of its reply.
    pub(crate) reply_memory: Arc<ReplyMemory>,
    /// What the call holds of the budget for large calls, returned when the call is dropped.
    pub(crate) _memory: Option<Taken>,
}

impl Call {
    /// The caller that the credential names. Programs ask
    /// [`Exports::identify`](crate::export::Exports::identify), which also refuses machines that no export is for.
    ///
    /// # Errors
    /// The credential is malformed, or not accepted from this origin.
    pub(crate) async fn identify(&self) -> Result<Identity, Refusal> {
        self.peer.identify(&self.header.cred).await.map_err(Refusal::Auth)
    }

    /// The flavor and the content of the credential, as far as it is the same when the client sends
    /// the call again: without the stamp of AUTH_SYS, which has no meaning and may be the time.
    pub(crate) fn credential(&self) -> (u32, &[u8]) {
        const STAMP_BYTES: usize = 4;
        let OpaqueAuth { flavor, body } = &self.header.cred;
        let content = match *flavor {
            AuthFlavor::SYS => body.get(STAMP_BYTES..).unwrap_or_default(),
            _ => body,
        };
        (flavor.0, content)
    }
}

/// Why a call is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The program has no such procedure.
    NoSuchProcedure,
    /// The arguments cannot be decoded.
    GarbageArgs,
    /// The server could not execute the call.
    SystemError,
    /// The credential is not accepted.
    Auth(AuthStatus),
}

impl From<weir_xdr::Error> for Refusal {
    fn from(_: weir_xdr::Error) -> Self {
        Self::GarbageArgs
    }
}

impl From<Refusal> for ReplyBody {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoSuchProcedure => AcceptStatus::ProcUnavail.into(),
            Refusal::GarbageArgs => AcceptStatus::GarbageArgs.into(),
            Refusal::SystemError => AcceptStatus::SystemErr.into(),
            Refusal::Auth(status) => Self::Denied(Denial::AuthError(status)),
        }
    }
}

/// One version of one RPC program.
#[async_trait]
pub trait Program: Send + Sync + 'static {
    /// The program's number and version.
    fn id(&self) -> ProgramId;

    /// Executes a call and appends its results to `reply`, which holds the reply's header.
    ///
    /// # Errors
    /// The reason why the call was not executed.
    async fn call(self: Arc<Self>, call: Call, reply: Encoder) -> Result<Encoder, Refusal>;

    /// Called when a connection has ended.
    fn disconnected(&self, _peer: &Peer) {}

    /// Whether the program needs a connection that is idle.
    fn needs(&self, _peer: &Peer) -> bool {
        false
    }
}

/// The programs served on one port.
#[derive(Clone, Default)]
pub struct Programs {
    programs: Vec<(ProgramId, Arc<dyn Program>)>,
}

impl Programs {
    /// Adds a program.
    pub fn add(&mut self, program: Arc<dyn Program>) {
        self.programs.push((program.id(), program));
    }

    /// The programs' numbers and versions.
    pub fn ids(&self) -> Vec<ProgramId> {
        self.programs.iter().map(|(id, _)| *id).collect()
    }

    /// Tells the programs that a connection has ended.
    pub(crate) fn disconnected(&self, peer: &Peer) {
        self.programs.iter().for_each(|(_, program)| program.disconnected(peer));
    }

    /// Whether any program needs a connection that is idle.
    pub(crate) fn need(&self, peer: &Peer) -> bool {
        self.programs.iter().any(|(_, program)| program.needs(peer))
    }

    /// Finds a program.
    ///
    /// # Errors
    /// The status to reply with, which lists the supported versions, if any.
    pub fn find(&self, id: ProgramId) -> Result<Arc<dyn Program>, AcceptStatus> {
        if let Some((_, program)) = self.programs.iter().find(|(p, _)| *p == id) {
            return Ok(program.clone());
        }
        let versions = || {
            self.programs.iter().filter(|(p, _)| p.program == id.program).map(|(p, _)| p.version)
        };
        match (versions().min(), versions().max()) {
            (Some(low), Some(high)) => Err(AcceptStatus::ProgMismatch(VersionRange { low, high })),
            _ => Err(AcceptStatus::ProgUnavail),
        }
    }
}

impl std::fmt::Debug for Programs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.programs.iter().map(|(id, _)| id)).finish()
    }
}
