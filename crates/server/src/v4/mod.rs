//! NFSv4: executes compounds of operations.
//!
//! - `program`: the RPC program. `nfs4`: what its compounds share.
//! - `compound`: runs the operations of a compound in order.
//! - `context`: the filehandles, stateids and caller of a compound.
//! - `ops`: the operations, in small families.
//! - `copy`: copies within the server, synchronous and asynchronous.
//! - `owner_seqid`: the order of an owner's requests in minor version 0. `retransmission`: the
//!   duplicate request cache of minor version 0.
//! - `attrs`, `acl`: attributes. `idmap`: names of users and groups. `status`: errors.
//!   `open_arguments`: what OPEN supports.

mod acl;
mod attrs;
mod compound;
mod context;
mod copy;
mod idmap;
mod nfs4;
mod open_arguments;
mod ops;
mod owner_seqid;
mod program;
mod retransmission;
mod retried;
mod status;
#[cfg(test)]
mod tests;

pub(crate) use nfs4::{Nfs4, Options};
