//! The port mapper, version 2 of rpcbind (RFC 1833 section 3): which port serves a program.

use weir_xdr::{Decode, Decoder, Encode, Encoder, Result, xdr_enum, xdr_struct};

/// Program number.
pub const PROGRAM: u32 = 100_000;
/// Version.
pub const VERSION: u32 = 2;
/// The mapper's own port.
pub const PORT: u16 = 111;

/// Protocol number of TCP in a [`Mapping`].
pub const TCP: u32 = 6;
/// Protocol number of UDP in a [`Mapping`].
pub const UDP: u32 = 17;

xdr_enum! {
    /// Procedures.
    pub enum Procedure {
        /// Does nothing.
        Null = 0,
        /// Registers a [`Mapping`]; returns whether that succeeded.
        Set = 1,
        /// Removes all mappings of a program and version; returns whether that succeeded.
        Unset = 2,
        /// Returns a program's port, or 0 ([`Mapping::port`] is ignored).
        GetPort = 3,
        /// Returns all mappings ([`MappingList`]).
        Dump = 4,
    }
}

xdr_struct! {
    /// The port of a program.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Mapping {
        /// Program.
        pub program: u32,
        /// Version of the program.
        pub version: u32,
        /// [`TCP`] or [`UDP`].
        pub protocol: u32,
        /// Port.
        pub port: u32,
    }
}

/// The answer to [`Procedure::Dump`]: at most 4096 mappings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappingList(pub Vec<Mapping>);

impl Encode for MappingList {
    fn encode(&self, e: &mut Encoder) {
        e.chain(&self.0);
    }
}

impl Decode for MappingList {
    fn decode(d: &mut Decoder) -> Result<Self> {
        d.chain(4096).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_xdr::sample::check;

    #[test]
    fn samples() {
        let nfs = Mapping { program: 100_003, version: 3, protocol: TCP, port: 2049 };
        check(&nfs, "000186a3 00000003 00000006 00000801");
        check(&MappingList(vec![nfs]), "00000001 000186a3 00000003 00000006 00000801 00000000");
    }
}
