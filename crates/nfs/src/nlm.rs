//! The Network Lock Manager, version 4 (RFC 1813 appendix II, and The Open Group's XNFS chapter
//! 10): byte-range locks and share reservations for NFSv3.
//!
//! Each of the five lock procedures also has an asynchronous form: a `_MSG` call with an empty
//! reply, and a `_RES` call in the opposite direction with the results.

use crate::macros::numbered;
use weir_rpc::ProgramId;
use weir_xdr::{Decode, Encode, Opaque, xdr_enum, xdr_struct, xdr_union};

/// Program number.
pub const PROGRAM: u32 = 100_021;
/// Version of the program.
pub const VERSION: u32 = 4;
/// The program in this version.
pub const ID: ProgramId = ProgramId { program: PROGRAM, version: VERSION };

/// Bytes with a meaning only for the host that created them (`netobj`).
pub type NetObj = Opaque<1024>;
/// A host's name for itself.
pub type CallerName = Opaque<1024>;
/// A filehandle of NFSv3.
pub type FileHandle = NetObj;

xdr_enum! {
    /// The outcome of a request (`nlm4_stats`).
    pub enum Status {
        /// Done.
        Granted = 0,
        /// Another owner holds a conflicting lock.
        Denied = 1,
        /// The server has no room for more locks.
        DeniedNoLocks = 2,
        /// Waiting: the server calls back when it grants the lock.
        Blocked = 3,
        /// The server has restarted: only locks held before may be requested.
        DeniedGracePeriod = 4,
        /// Waiting would never end.
        Deadlock = 5,
        /// The file system is read-only.
        ReadOnlyFs = 6,
        /// The filehandle names nothing any more.
        StaleHandle = 7,
        /// The range exceeds the server's offsets.
        TooBig = 8,
        /// Some other reason.
        Failed = 9,
    }

    /// What an open denies to others (`fsh4_mode`).
    pub enum ShareMode {
        /// Nothing.
        None = 0,
        /// Reading.
        Read = 1,
        /// Writing.
        Write = 2,
        /// The program in this version.
        Both = 3,
    }

    /// What an open does (`fsh4_access`).
    pub enum ShareAccess {
        /// Nothing.
        None = 0,
        /// Reading.
        Read = 1,
        /// Writing.
        Write = 2,
        /// The program in this version.
        Both = 3,
    }
}

xdr_struct! {
    /// A conflicting lock (`nlm4_holder`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Holder {
        /// Whether it excludes readers as well.
        pub exclusive: bool,
        /// The process, as its host numbers it.
        pub process: i32,
        /// The host's name for the owner.
        pub owner: NetObj,
        /// First byte.
        pub offset: u64,
        /// Bytes; 0: to the end of the file.
        pub length: u64,
    }

    /// Which lock (`nlm4_lock`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Lock {
        /// The host that asks.
        pub caller: CallerName,
        /// The file.
        pub file: FileHandle,
        /// The host's name for the owner.
        pub owner: NetObj,
        /// The process, as the host numbers it.
        pub process: i32,
        /// First byte.
        pub offset: u64,
        /// Bytes; 0: to the end of the file.
        pub length: u64,
    }

    /// Asks for a lock (`nlm4_lockargs`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LockArgs {
        /// Comes back in the reply.
        pub cookie: NetObj,
        /// Whether to wait for it.
        pub block: bool,
        /// Whether it excludes readers as well.
        pub exclusive: bool,
        /// Which lock.
        pub lock: Lock,
        /// It was held before the server restarted.
        pub reclaim: bool,
        /// The state number of the host's status monitor.
        pub state: i32,
    }

    /// Withdraws a waiting request (`nlm4_cancargs`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CancelArgs {
        /// Comes back in the reply.
        pub cookie: NetObj,
        /// As it was asked for.
        pub block: bool,
        /// As it was asked for.
        pub exclusive: bool,
        /// As it was asked for.
        pub lock: Lock,
    }

    /// Tests whether a lock is available, or reports that one was granted (`nlm4_testargs`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct TestArgs {
        /// Comes back in the reply.
        pub cookie: NetObj,
        /// Whether it excludes readers as well.
        pub exclusive: bool,
        /// Which lock.
        pub lock: Lock,
    }

    /// Gives a lock up (`nlm4_unlockargs`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct UnlockArgs {
        /// Comes back in the reply.
        pub cookie: NetObj,
        /// Which lock.
        pub lock: Lock,
    }

    /// The outcome of a request (`nlm4_res`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Res {
        /// The request's.
        pub cookie: NetObj,
        /// What became of it.
        pub status: Status,
    }

    /// The outcome of a test (`nlm4_testres`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct TestRes {
        /// The request's.
        pub cookie: NetObj,
        /// What became of it.
        pub reply: TestReply,
    }

    /// A share reservation (`nlm4_share`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Share {
        /// The host that asks.
        pub caller: CallerName,
        /// The file.
        pub file: FileHandle,
        /// The host's name for the owner.
        pub owner: NetObj,
        /// What is denied to others.
        pub mode: ShareMode,
        /// What the owner does.
        pub access: ShareAccess,
    }

    /// Requests or releases a share reservation (`nlm4_shareargs`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ShareArgs {
        /// Comes back in the reply.
        pub cookie: NetObj,
        /// Which reservation.
        pub share: Share,
        /// It was held before the server restarted.
        pub reclaim: bool,
    }

    /// The outcome of a share request (`nlm4_shareres`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ShareRes {
        /// The request's.
        pub cookie: NetObj,
        /// What became of it.
        pub status: Status,
        /// Nothing in particular.
        pub sequence: i32,
    }

    /// Reports that a host has restarted, or is done (`nlm4_notify`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Notify {
        /// The host.
        pub name: CallerName,
        /// The state number of its status monitor.
        pub state: i32,
    }
}

xdr_union! {
    /// The answer to a test (`nlm4_testrply`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum TestReply {
        /// The lock could be had.
        Granted = Status::Granted,
        /// This lock conflicts.
        Denied(Holder) = Status::Denied,
        /// The server has no room for more locks.
        DeniedNoLocks = Status::DeniedNoLocks,
        /// A test does not block.
        Blocked = Status::Blocked,
        /// The server restarted.
        DeniedGracePeriod = Status::DeniedGracePeriod,
        /// Waiting would never end.
        Deadlock = Status::Deadlock,
        /// The file system is read-only.
        ReadOnlyFs = Status::ReadOnlyFs,
        /// The filehandle is stale.
        StaleHandle = Status::StaleHandle,
        /// The range exceeds the server's offsets.
        TooBig = Status::TooBig,
        /// Some other reason.
        Failed = Status::Failed,
    }
}

/// A test that failed for a reason other than a conflicting lock.
impl From<Status> for TestReply {
    fn from(status: Status) -> Self {
        match status {
            Status::Granted => Self::Granted,
            Status::DeniedNoLocks => Self::DeniedNoLocks,
            Status::Blocked => Self::Blocked,
            Status::DeniedGracePeriod => Self::DeniedGracePeriod,
            Status::Deadlock => Self::Deadlock,
            Status::ReadOnlyFs => Self::ReadOnlyFs,
            Status::StaleHandle => Self::StaleHandle,
            Status::TooBig => Self::TooBig,
            Status::Denied | Status::Failed => Self::Failed,
        }
    }
}

/// A procedure's number, name, arguments and results.
pub trait Call {
    /// Which procedure.
    const PROCEDURE: Procedure;
    /// What it takes.
    type Args: Encode + Decode;
    /// What it returns.
    type Res: Encode + Decode;
}

/// Hands the table of procedures to the macro `$then`: what it does, its variant of
/// [`Procedure`](crate::nlm::Procedure), number, name, arguments, results (the server's dispatch is
/// made with it).
#[macro_export]
macro_rules! nlm_procedures {
    ($then:ident) => {
        $then! {
            /// Does nothing.
            Null = 0, null, (), ();
            /// Asks whether a lock could be had.
            Test = 1, test, TestArgs, TestRes;
            /// Takes a lock.
            Lock = 2, lock, LockArgs, Res;
            /// Withdraws a request that blocks.
            Cancel = 3, cancel, CancelArgs, Res;
            /// Gives a lock up.
            Unlock = 4, unlock, UnlockArgs, Res;
            /// Reports that a lock for which the client waited is granted.
            Granted = 5, granted, TestArgs, Res;
            /// TEST, answered by TEST_RES.
            TestMsg = 6, test_msg, TestArgs, ();
            /// LOCK, answered by LOCK_RES.
            LockMsg = 7, lock_msg, LockArgs, ();
            /// CANCEL, answered by CANCEL_RES.
            CancelMsg = 8, cancel_msg, CancelArgs, ();
            /// UNLOCK, answered by UNLOCK_RES.
            UnlockMsg = 9, unlock_msg, UnlockArgs, ();
            /// GRANTED, answered by GRANTED_RES.
            GrantedMsg = 10, granted_msg, TestArgs, ();
            /// The answer to TEST_MSG.
            TestRes = 11, test_res, TestRes, ();
            /// The answer to LOCK_MSG.
            LockRes = 12, lock_res, Res, ();
            /// The answer to CANCEL_MSG.
            CancelRes = 13, cancel_res, Res, ();
            /// The answer to UNLOCK_MSG.
            UnlockRes = 14, unlock_res, Res, ();
            /// The answer to GRANTED_MSG.
            GrantedRes = 15, granted_res, Res, ();
            /// Takes a share reservation.
            Share = 20, share, ShareArgs, ShareRes;
            /// Gives a share reservation up.
            Unshare = 21, unshare, ShareArgs, ShareRes;
            /// Acquires a lock for a host that is not monitored.
            NmLock = 22, nm_lock, LockArgs, Res;
            /// Gives up everything that a host has.
            FreeAll = 23, free_all, Notify, ();
        }
    };
}

macro_rules! declare {
    ($($(#[$meta:meta])* $name:ident = $number:literal, $label:ident, $args:ty, $res:ty;)*) => {
        numbered! {
            /// A procedure.
            pub enum Procedure { $($(#[$meta])* $name = $number, $label;)* }
        }

        /// The procedures as types, for callers.
        pub mod call {
            $($(#[$meta])*
            #[derive(Clone, Copy, Debug)]
            pub struct $name;)*
        }

        $(impl Call for call::$name {
            const PROCEDURE: Procedure = Procedure::$name;
            type Args = $args;
            type Res = $res;
        })*
    };
}

nlm_procedures!(declare);

#[cfg(test)]
mod tests {
    use super::*;
    use weir_xdr::sample::check;

    const LOCK: &str = "00000003 626f7800 00000002 68610000 00000005 37406261 72000000 00000007
                        00000000 0000000a 00000000 00000000";

    fn lock() -> Lock {
        Lock {
            caller: "box".into(),
            file: "ha".into(),
            owner: "7@bar".into(),
            process: 7,
            offset: 10,
            length: 0,
        }
    }

    #[test]
    fn procedures() {
        assert_eq!(Procedure::from_number(16), None);
        assert_eq!(Procedure::from_number(23), Some(Procedure::FreeAll));
        assert_eq!(<call::GrantedMsg as Call>::PROCEDURE.name(), "granted_msg");
    }

    #[test]
    fn calls_about_locks() {
        let cookie = || NetObj::from("c");
        let (block, exclusive, reclaim, state) = (true, false, true, 3);
        let args = LockArgs { cookie: cookie(), block, exclusive, lock: lock(), reclaim, state };
        let wire = format!("00000001 63000000 00000001 00000000 {LOCK} 00000001 00000003");
        check(&args, &wire);
        let args = CancelArgs { cookie: cookie(), block, exclusive, lock: lock() };
        check(&args, &format!("00000001 63000000 00000001 00000000 {LOCK}"));
        let args = TestArgs { cookie: cookie(), exclusive: true, lock: lock() };
        check(&args, &format!("00000001 63000000 00000001 {LOCK}"));
        check(&UnlockArgs { cookie: cookie(), lock: lock() }, &format!("00000001 63000000 {LOCK}"));
    }

    #[test]
    fn results_about_locks() {
        check(&Res { cookie: "c".into(), status: Status::Blocked }, "00000001 63000000 00000003");
        let holder =
            Holder { exclusive: true, process: -1, owner: "o".into(), offset: 1, length: 2 };
        check(
            &TestRes { cookie: NetObj::default(), reply: TestReply::Denied(holder) },
            "00000000 00000001 00000001 ffffffff 00000001 6f000000
             00000000 00000001 00000000 00000002",
        );
        check(&TestReply::from(Status::StaleHandle), "00000007");
        check(&TestReply::from(Status::Granted), "00000000");
    }

    #[test]
    fn shares_and_notices() {
        let share = Share {
            caller: "box".into(),
            file: "ha".into(),
            owner: "o".into(),
            mode: ShareMode::Write,
            access: ShareAccess::Both,
        };
        check(
            &ShareArgs { cookie: NetObj::default(), share, reclaim: false },
            "00000000 00000003 626f7800 00000002 68610000 00000001 6f000000 00000002 00000003 00000000",
        );
        check(
            &ShareRes { cookie: NetObj::default(), status: Status::Denied, sequence: 0 },
            "00000000 00000001 00000000",
        );
        check(&Notify { name: "box".into(), state: 5 }, "00000003 626f7800 00000005");
    }
}
