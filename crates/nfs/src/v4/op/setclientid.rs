//! SETCLIENTID (RFC 7530 section 16.33): introduces a client.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::error::{Detail, Detailed};
use crate::v4::types::{ClientId, ClientOwner, NetAddr, Verifier};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// Who the client is.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// Its own name for itself.
        pub client: ClientOwner,
        /// Number of its callback program.
        pub cb_program: u32,
        /// Where that listens.
        pub cb_location: NetAddr,
        /// Comes back in callbacks.
        pub callback_ident: u32,
    }

    /// A client id that is not confirmed yet.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Introduced {
        /// The client's short name.
        pub client_id: ClientId,
        /// What SETCLIENTID_CONFIRM shall say.
        pub confirm: Verifier,
    }
}

impl Detail for NetAddr {
    const ERROR: Error = Error::ClIdInUse;
}

/// The client id; if the name is in use, the address of the client with it.
pub type Res = Result<Introduced, Detailed<NetAddr>>;

samples! {
    args: [
        Args {
            client: ClientOwner { verifier: *b"verifier", owner: "own".into() },
            cb_program: 0x4000_0000,
            cb_location: NetAddr { netid: "tcp".into(), addr: "1.2".into() },
            callback_ident: 1,
        } => "76657269 66696572 00000003 6f776e00 40000000 00000003 74637000 00000003 312e3200
            00000001",
    ],
    results: [
        Ok(Introduced { client_id: 9, confirm: *b"verifier" }) =>
            "00000000 00000000 00000009 76657269 66696572";
        Err(Detailed::Detail(NetAddr { netid: "tcp".into(), addr: "1.2.3".into() })) =>
            "00002721 00000003 74637000 00000005 312e322e 33000000", variable 12;
        Err(Detailed::Plain(Error::Delay)) => "00002718";
    ],
}
