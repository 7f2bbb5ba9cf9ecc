//! NFSv4: compounds of operations, executed one by one.
//!
//! - `program`: the RPC program. `nfs4`: what its compounds share.
//! - `compound`: the order of operations, which of them may run, replies kept and replayed.
//! - `context`: a compound's filehandles, stateids, and caller.
//! - `ops`: the operations, in small families.
//! - `copy`: COPY, piece by piece, and in the background.
//! - `owner_seqid`: the order of requests in minor version 0. `attrs`, `acl`: attributes. `status`:
//!   errors. `idmap`: names of users and groups. `open_arguments`: what OPEN supports.

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
mod status;
#[cfg(test)]
mod tests;

pub(crate) use nfs4::{Nfs4, Options};
