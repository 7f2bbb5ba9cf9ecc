//! EXCHANGE_ID (RFC 8881 section 18.35): introduces a client.

use crate::macros::{samples, wire_flags};
use crate::v4::bitmap::Bitmap;
use crate::v4::error::Error;
use crate::v4::types::{Blob, ClientId, ClientOwner, ImplId, MAX_LIST, Owner, ServerOwner};
use weir_xdr::{List, xdr_struct, xdr_union};

wire_flags! {
    /// Capabilities of the peers, and requests.
    pub struct Flags {
        /// The client follows referrals.
        const SUPP_MOVED_REFER = 0x0000_0001;
        /// The client follows migration.
        const SUPP_MOVED_MIGR = 0x0000_0002;
        /// The peer does the operations that need fencing (minor version 2).
        const SUPP_FENCE_OPS = 0x0000_0004;
        /// Stateids belong to the principal that created them.
        const BIND_PRINC_STATEID = 0x0000_0100;
        /// Not for pNFS.
        const USE_NON_PNFS = 0x0001_0000;
        /// As a pNFS metadata server.
        const USE_PNFS_MDS = 0x0002_0000;
        /// As a pNFS data server.
        const USE_PNFS_DS = 0x0004_0000;
        /// Every kind of pNFS role.
        const MASK_PNFS = 0x0007_0000;
        /// The call updates a confirmed record.
        const UPD_CONFIRMED_REC_A = 0x4000_0000;
        /// The result is of a confirmed record.
        const CONFIRMED_R = 0x8000_0000;
        /// Those that a call may have.
        const MASK_A = 0x4007_0107;
        /// Those that a result may have.
        const MASK_R = 0x8007_0107;
    }
}

xdr_union! {
    /// Requested state protection (`state_protect4_a`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum StateProtect {
        /// Not at all.
        None = 0,
        /// By the machine's credential.
        MachCred(ProtectOps) = 1,
        /// By a shared secret.
        Ssv(SsvParams) = 2,
    }

    /// State protection in effect (`state_protect4_r`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum StateProtected {
        /// Not at all.
        None = 0,
        /// By the machine's credential.
        MachCred(ProtectOps) = 1,
        /// By a shared secret.
        Ssv(SsvInfo) = 2,
    }
}

xdr_struct! {
    /// Who the client is.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// Its own name for itself.
        pub client: ClientOwner,
        /// What it can do, and what it asks for.
        pub flags: Flags,
        /// How its state is to be protected.
        pub state_protect: StateProtect,
        /// Its software.
        pub impl_id: List<ImplId, 1>,
    }

    /// Operations that are protected.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ProtectOps {
        /// Those that only the credential may do.
        pub must_enforce: Bitmap,
        /// Operations that this credential may execute on behalf of users.
        pub must_allow: Bitmap,
    }

    /// Parameters requested for a shared secret (`ssv_sp_parms4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SsvParams {
        /// Operations that are protected.
        pub ops: ProtectOps,
        /// Object identifiers of hash algorithms.
        pub hash_algs: List<Blob, MAX_LIST>,
        /// Object identifiers of encryption algorithms.
        pub encr_algs: List<Blob, MAX_LIST>,
        /// Secrets that shall be kept.
        pub window: u32,
        /// GSS handles that are wanted.
        pub num_gss_handles: u32,
    }

    /// Parameters of the shared secret (`ssv_prot_info4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SsvInfo {
        /// Operations that are protected.
        pub ops: ProtectOps,
        /// Which of the hash algorithms.
        pub hash_alg: u32,
        /// Which of the encryption algorithms.
        pub encr_alg: u32,
        /// Bytes in a secret.
        pub ssv_len: u32,
        /// Secrets that are kept.
        pub window: u32,
        /// GSS handles.
        pub handles: List<Blob, MAX_LIST>,
    }

    /// The client's and the server's identities.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Exchanged {
        /// The client's short name.
        pub client_id: ClientId,
        /// The sequence id for the first CREATE_SESSION.
        pub sequence_id: u32,
        /// The server's capabilities, and whether the client is confirmed.
        pub flags: Flags,
        /// How the client's state is protected.
        pub state_protect: StateProtected,
        /// Who the server is.
        pub server_owner: ServerOwner,
        /// Servers of the same scope share filehandles and other identifiers.
        pub server_scope: Owner,
        /// The server's software.
        pub impl_id: List<ImplId, 1>,
    }
}

/// Both sides, introduced.
pub type Res = Result<Exchanged, Error>;

#[cfg(test)]
fn ops() -> ProtectOps {
    ProtectOps { must_enforce: Bitmap::of(&[40, 42]), must_allow: Bitmap::of(&[4]) }
}

#[cfg(test)]
const OPS: &str = "00000002 00000000 00000500 00000001 00000010";

#[cfg(test)]
fn impl_id() -> ImplId {
    use crate::v4::types::NfsTime;
    ImplId { domain: "a.b".into(), name: "weir".into(), date: NfsTime { seconds: 2, nseconds: 3 } }
}

#[cfg(test)]
const IMPL_ID: &str = "00000003 612e6200 00000004 77656972 00000000 00000002 00000003";

#[cfg(test)]
fn args(state_protect: StateProtect, impl_id: Vec<ImplId>) -> Args {
    Args {
        client: ClientOwner { verifier: *b"verifier", owner: "own".into() },
        flags: Flags::USE_NON_PNFS,
        state_protect,
        impl_id: impl_id.into(),
    }
}

#[cfg(test)]
const ARGS: &str = "76657269 66696572 00000003 6f776e00 00010000";

#[cfg(test)]
fn exchanged(state_protect: StateProtected, impl_id: Vec<ImplId>) -> Exchanged {
    Exchanged {
        client_id: 9,
        sequence_id: 1,
        flags: Flags::CONFIRMED_R | Flags::USE_NON_PNFS,
        state_protect,
        server_owner: ServerOwner { minor_id: 5, major_id: "maj".into() },
        server_scope: "scope".into(),
        impl_id: impl_id.into(),
    }
}

#[cfg(test)]
const EXCHANGED: &str = "00000000 00000000 00000009 00000001 80010000";
#[cfg(test)]
const SERVER: &str = "00000000 00000005 00000003 6d616a00 00000005 73636f70 65000000";

samples! {
    args: [
        args(StateProtect::None, vec![]) => &format!("{ARGS} 00000000 00000000"),
        args(StateProtect::MachCred(ops()), vec![impl_id()]) =>
            &format!("{ARGS} 00000001 {OPS} 00000001 {IMPL_ID}"),
        args(
            StateProtect::Ssv(SsvParams {
                ops: ops(),
                hash_algs: vec!["h".into()].into(),
                encr_algs: vec!["e".into(), "f".into()].into(),
                window: 3,
                num_gss_handles: 4,
            }),
            vec![],
        ) => &format!(
            "{ARGS} 00000002 {OPS} 00000001 00000001 68000000
            00000002 00000001 65000000 00000001 66000000 00000003 00000004 00000000"
        ),
    ],
    results: [
        Ok(exchanged(StateProtected::None, vec![impl_id()])) =>
            &format!("{EXCHANGED} 00000000 {SERVER} 00000001 {IMPL_ID}"), variable 40;
        Ok(exchanged(StateProtected::MachCred(ops()), vec![])) =>
            &format!("{EXCHANGED} 00000001 {OPS} {SERVER} 00000000"), variable 12;
        Ok(exchanged(
            StateProtected::Ssv(SsvInfo {
                ops: ops(),
                hash_alg: 0,
                encr_alg: 1,
                ssv_len: 32,
                window: 3,
                handles: vec!["g".into()].into(),
            }),
            vec![],
        )) => &format!(
            "{EXCHANGED} 00000002 {OPS} 00000000 00000001 00000020 00000003
            00000001 00000001 67000000 {SERVER} 00000000"
        ), variable 20;
        Err(Error::ClIdInUse) => "00002721";
    ],
}
