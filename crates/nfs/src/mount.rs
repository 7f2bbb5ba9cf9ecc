//! MOUNT version 3 (RFC 1813 appendix I): maps a path to the filehandle that NFSv3 starts with.

use crate::macros::numbered;
use crate::v3::MAX_HANDLE_BYTES;
use crate::v3::op::readdir::Chain;
use weir_rpc::AuthFlavor;
use weir_rpc::ProgramId;
use weir_xdr::{Decode, Encode, List, Opaque, xdr_enum, xdr_struct};

/// Program number.
pub const PROGRAM: u32 = 100_005;
/// Version of the program.
pub const VERSION: u32 = 3;
/// The program in this version.
pub const ID: ProgramId = ProgramId { program: PROGRAM, version: VERSION };

/// A path on the server (`dirpath`).
pub type DirPath = Opaque<1024>;
/// A name of a host or of a group of hosts (`name`).
pub type HostName = Opaque<255>;

xdr_struct! {
    /// Nothing.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Null {}

    /// What to mount.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Mnt {
        /// The directory's path.
        pub path: DirPath,
    }

    /// Nothing.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Dump {}

    /// What to forget.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Umnt {
        /// The directory's path.
        pub path: DirPath,
    }

    /// Nothing.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Umntall {}

    /// Nothing.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Export {}

    /// A mounted directory (`mountres3_ok`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct MntOk {
        /// Its handle.
        pub handle: Opaque<MAX_HANDLE_BYTES>,
        /// Flavors with which callers may authenticate, best first.
        pub flavors: List<AuthFlavor, 64>,
    }

    /// A client's mount (`mountbody`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Mounted {
        /// Who.
        pub host: HostName,
        /// What.
        pub path: DirPath,
    }

    /// A directory that may be mounted (`exportnode`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Exported {
        /// Its path.
        pub path: DirPath,
        /// The clients that may mount it; an empty list means all.
        pub groups: Chain<HostName>,
    }
}

xdr_enum! {
    /// Why a directory cannot be mounted (`mountstat3`).
    pub enum Error {
        /// Not the owner.
        Perm = 1,
        /// No such directory.
        NoEnt = 2,
        /// I/O error.
        Io = 5,
        /// Permission denied.
        Access = 13,
        /// Not a directory.
        NotDir = 20,
        /// Invalid argument.
        Inval = 22,
        /// Name too long.
        NameTooLong = 63,
        /// Operation not supported.
        NotSupp = 10004,
        /// The server failed.
        ServerFault = 10006,
    }
}

/// The directory's handle, or an error.
pub type MntRes = Result<MntOk, Error>;

/// A procedure's arguments, tied to its number and results, as a client needs them for a call.
pub trait Call: Encode + Decode {
    /// Which procedure.
    const PROCEDURE: Procedure;
    /// What it returns.
    type Res: Encode + Decode;
}

macro_rules! declare {
    ($($(#[$meta:meta])* $name:ident = $number:literal, $label:ident, $args:ty, $res:ty;)*) => {
        numbered! {
            /// A procedure.
            pub enum Procedure { $($(#[$meta])* $name = $number, $label;)* }
        }

        $(impl Call for $args {
            const PROCEDURE: Procedure = Procedure::$name;
            type Res = $res;
        })*
    };
}

declare! {
    /// Does nothing.
    Null = 0, null, Null, ();
    /// Mounts a directory.
    Mnt = 1, mnt, Mnt, MntRes;
    /// Says who has mounted what.
    Dump = 2, dump, Dump, Chain<Mounted>;
    /// Forgets a mount of the caller's.
    Umnt = 3, umnt, Umnt, ();
    /// Forgets all mounts of the caller's.
    Umntall = 4, umntall, Umntall, ();
    /// Says what is exported, and to whom.
    Export = 5, export, Export, Chain<Exported>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_xdr::sample::check;

    #[test]
    fn null() {
        check(&Null {}, "");
        assert_eq!(Procedure::from_number(6), None);
    }

    #[test]
    fn mnt() {
        check(&Mnt { path: "/srv".into() }, "00000004 2f737276");
        let ok = MntOk {
            handle: "handle".into(),
            flavors: vec![AuthFlavor::SYS, AuthFlavor::NONE].into(),
        };
        check::<MntRes>(&Ok(ok), "00000000 00000006 68616e64 6c650000 00000002 00000001 00000000");
        check::<MntRes>(&Err(Error::NoEnt), "00000002");
        check::<MntRes>(&Err(Error::ServerFault), "00002716");
    }

    #[test]
    fn dump() {
        check(&Dump {}, "");
        let mounted = Mounted { host: "box".into(), path: "/".into() };
        check(&Chain(vec![mounted]), "00000001 00000003 626f7800 00000001 2f000000 00000000");
    }

    #[test]
    fn umnt_and_umntall() {
        check(&Umnt { path: "/".into() }, "00000001 2f000000");
        check(&Umntall {}, "");
    }

    #[test]
    fn export() {
        check(&Export {}, "");
        let exported = Exported { path: "/".into(), groups: Chain(vec!["lan".into()]) };
        check(
            &Chain(vec![exported]),
            "00000001 00000001 2f000000 00000001 00000003 6c616e00 00000000 00000000",
        );
    }
}
