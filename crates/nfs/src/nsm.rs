//! The Network Status Monitor, version 1 (XNFS chapter 11): reports restarts of a host to lock
//! managers, so that a server frees the host's locks, and a client reclaims its own.

use crate::macros::numbered;
use weir_rpc::ProgramId;
use weir_xdr::{Opaque, xdr_enum, xdr_struct};

/// Program number.
pub const PROGRAM: u32 = 100_024;
/// Version of the program.
pub const VERSION: u32 = 1;
/// The program in this version.
pub const ID: ProgramId = ProgramId { program: PROGRAM, version: VERSION };

/// A host's name.
pub type HostName = Opaque<1024>;

numbered! {
    /// A procedure.
    pub enum Procedure {
        /// Does nothing.
        Null = 0, null;
        /// Asks whether a host can be monitored: a [`StatName`]; returns a [`StatRes`].
        Stat = 1, stat;
        /// Starts monitoring a host: a [`Mon`]; returns a [`StatRes`].
        Mon = 2, mon;
        /// Stops monitoring it: a [`MonId`]; returns a [`State`].
        Unmon = 3, unmon;
        /// Stops monitoring all hosts: a [`MyId`]; returns a [`State`].
        UnmonAll = 4, unmon_all;
        /// Plays a restart of this host.
        SimuCrash = 5, simu_crash;
        /// Reports that a host has restarted: a [`StatChange`]; returns nothing.
        Notify = 6, notify;
    }
}

xdr_enum! {
    /// Whether a host is monitored (`res`).
    pub enum Outcome {
        /// It is.
        Success = 0,
        /// It is not.
        Failure = 1,
    }
}

xdr_struct! {
    /// Which host (`sm_name`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct StatName {
        /// Its name.
        pub name: HostName,
    }

    /// Who is to be told (`my_id`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct MyId {
        /// The host.
        pub name: HostName,
        /// Program to call.
        pub program: u32,
        /// Its version.
        pub version: u32,
        /// Its procedure.
        pub procedure: u32,
    }

    /// The host to monitor, and the program to notify (`mon_id`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct MonId {
        /// The host to be monitored.
        pub name: HostName,
        /// Who is to be told.
        pub to: MyId,
    }

    /// A host to be monitored (`mon`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Mon {
        /// Which, and for whom.
        pub id: MonId,
        /// Handed back in the notification.
        pub private: [u8; 16],
    }

    /// This host's state number (`sm_stat`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct State {
        /// Odd while the host is up; increases with every restart.
        pub state: i32,
    }

    /// Whether a host is monitored (`sm_stat_res`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct StatRes {
        /// Whether it is.
        pub outcome: Outcome,
        /// The number of this host's run.
        pub state: i32,
    }

    /// A restart (`stat_chge`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct StatChange {
        /// The host.
        pub name: HostName,
        /// The number of its run.
        pub state: i32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_xdr::sample::check;

    #[test]
    fn samples() {
        check(&StatName { name: "box".into() }, "00000003 626f7800");
        let to = MyId { name: "me".into(), program: PROGRAM, version: 3, procedure: 16 };
        let mon = Mon { id: MonId { name: "box".into(), to }, private: *b"0123456789abcdef" };
        check(
            &mon,
            "00000003 626f7800 00000002 6d650000 000186b8 00000003 00000010
             30313233 34353637 38396162 63646566",
        );
        check(&State { state: 7 }, "00000007");
        check(&StatRes { outcome: Outcome::Failure, state: 7 }, "00000001 00000007");
        check(&StatChange { name: "box".into(), state: 9 }, "00000003 626f7800 00000009");
        for number in 0..7 {
            assert_eq!(Procedure::from_number(number).map(|p| p as u32), Some(number));
        }
        assert_eq!(Procedure::from_number(7), None);
    }
}
