//! The table of operations: one row each, from which all code that covers every operation is
//! generated.
//!
//! A row is: a description, the variant of [`OpCode`], its number, its file in [`op`], the first
//! and last minor version that have it, its place in a session, the filehandles that it needs, its
//! use of stateids, whether it is idempotent, and the most bytes of its result (number and status
//! included), either `fixed`, or `and` the data that the call asked for.
//!
//! Operations of a second, shorter list are known but not served: they need no codec, because the
//! answer (not supported) ends the compound.
//! answer (not supported) ends the compound.

use super::error::Error;
use super::error::Outcome;
use super::op;
use super::types::Status;
use crate::macros::numbered;
use weir_xdr::{Decoder, Encode, Encoder};

/// Hands the table to the macro `$then`, rows as they stand here (the server's dispatch is made
/// with it).
#[macro_export]
macro_rules! v4_operations {
    ($then:ident) => {
        $then! {
            /// Which of some rights the caller has.
            Access = 3, access, 0..=2, within, current, none, repeatable, fixed 16;
            /// Ends an open.
            Close = 4, close, 0..=2, within, current, takes, once, fixed 24;
            /// Makes unstable data durable.
            Commit = 5, commit, 0..=2, within, current, none, repeatable, fixed 16;
            /// Makes a file that is no regular one.
            Create = 6, create, 0..=2, within, current, none, once, fixed 48;
            /// Gives a delegation back.
            Delegreturn = 8, delegreturn, 0..=2, within, current, takes, once, fixed 8;
            /// Attributes of a file.
            Getattr = 9, getattr, 0..=2, within, current, none, repeatable, and 32;
            /// The current filehandle.
            Getfh = 10, getfh, 0..=2, within, current, none, repeatable, fixed 140;
            /// Makes another name for a file.
            Link = 11, link, 0..=2, within, both, none, once, fixed 28;
            /// Locks a range.
            Lock = 12, lock, 0..=2, within, current, sets, once, and 48;
            /// Tests for a conflicting lock.
            Lockt = 13, lockt, 0..=2, within, current, none, repeatable, and 48;
            /// Unlocks a range.
            Locku = 14, locku, 0..=2, within, current, sets, once, fixed 24;
            /// Finds a name in a directory.
            Lookup = 15, lookup, 0..=2, within, current, none, repeatable, fixed 8;
            /// Goes to a directory's parent.
            Lookupp = 16, lookupp, 0..=2, within, current, none, repeatable, fixed 8;
            /// Goes on if attributes differ.
            Nverify = 17, nverify, 0..=2, within, current, none, repeatable, fixed 8;
            /// Opens a regular file.
            Open = 18, open, 0..=2, within, current, sets, once, and 128;
            /// Confirms a new open owner (minor version 0).
            OpenConfirm = 20, open_confirm, 0..=0, within, current, sets, once, fixed 24;
            /// Gives up some of an open's access.
            OpenDowngrade = 21, open_downgrade, 0..=2, within, current, sets, once, fixed 24;
            /// Sets the current filehandle.
            Putfh = 22, putfh, 0..=2, within, none, none, repeatable, fixed 8;
            /// Goes to the public filehandle.
            Putpubfh = 23, putpubfh, 0..=2, within, none, none, repeatable, fixed 8;
            /// Goes to the root.
            Putrootfh = 24, putrootfh, 0..=2, within, none, none, repeatable, fixed 8;
            /// Reads data.
            Read = 25, read, 0..=2, within, current, takes, repeatable, and 16;
            /// Names in a directory.
            Readdir = 26, readdir, 0..=2, within, current, none, repeatable, and 24;
            /// The target of a symbolic link.
            Readlink = 27, readlink, 0..=2, within, current, none, repeatable, and 12;
            /// Removes a name.
            Remove = 28, remove, 0..=2, within, current, none, once, fixed 28;
            /// Renames.
            Rename = 29, rename, 0..=2, within, both, none, once, fixed 48;
            /// Renews a lease (minor version 0).
            Renew = 30, renew, 0..=0, within, none, none, repeatable, fixed 8;
            /// Makes the saved filehandle the current one.
            Restorefh = 31, restorefh, 0..=2, within, none, none, repeatable, fixed 8;
            /// Saves the current filehandle.
            Savefh = 32, savefh, 0..=2, within, current, none, repeatable, fixed 8;
            /// Security flavors for a name.
            Secinfo = 33, secinfo, 0..=2, within, current, none, repeatable, and 12;
            /// Sets attributes.
            Setattr = 34, setattr, 0..=2, within, current, takes, once, fixed 24;
            /// Introduces a client (minor version 0).
            Setclientid = 35, setclientid, 0..=0, within, none, none, once, and 24;
            /// Confirms an introduction (minor version 0).
            SetclientidConfirm = 36, setclientid_confirm, 0..=0, within, none, none, once, fixed 8;
            /// Goes on if attributes are the same.
            Verify = 37, verify, 0..=2, within, current, none, repeatable, fixed 8;
            /// Writes data.
            Write = 38, write, 0..=2, within, current, takes, once, fixed 24;
            /// Forgets a lock owner (minor version 0).
            ReleaseLockowner = 39, release_lockowner, 0..=0, within, none, none, once, fixed 8;
            /// Sets the backchannel's security.
            BackchannelCtl = 40, backchannel_ctl, 1..=2, within, none, none, once, fixed 8;
            /// Adds a connection to a session.
            BindConnToSession = 41, bind_conn_to_session, 1..=2, alone, none, none, once, fixed 32;
            /// Introduces a client.
            ExchangeId = 42, exchange_id, 1..=2, alone, none, none, once, and 160;
            /// Makes a session.
            CreateSession = 43, create_session, 1..=2, alone, none, none, once, fixed 100;
            /// Ends a session.
            DestroySession = 44, destroy_session, 1..=2, alone, none, none, once, fixed 8;
            /// Frees a stateid that is no longer in use.
            FreeStateid = 45, free_stateid, 1..=2, within, none, takes, once, fixed 8;
            /// Security flavors for a file or its parent.
            SecinfoNoName = 52, secinfo_no_name, 1..=2, within, current, none, repeatable, and 12;
            /// Begins a compound in a session.
            Sequence = 53, sequence, 1..=2, first, none, none, once, fixed 44;
            /// Looks at stateids.
            TestStateid = 55, test_stateid, 1..=2, within, none, none, repeatable, and 12;
            /// Forgets a client.
            DestroyClientid = 57, destroy_clientid, 1..=2, alone, none, none, once, fixed 8;
            /// Ends a client's reclaiming.
            ReclaimComplete = 58, reclaim_complete, 1..=2, within, none, none, once, fixed 8;
            /// Reserves space.
            Allocate = 59, allocate, 2..=2, within, current, takes, once, fixed 8;
            /// Copies a range on the server.
            Copy = 60, copy, 2..=2, within, both, takes, once, fixed 64;
            /// Makes a hole.
            Deallocate = 62, deallocate, 2..=2, within, current, takes, once, fixed 8;
            /// Says how data will be used.
            IoAdvise = 63, io_advise, 2..=2, within, current, takes, repeatable, fixed 24;
            /// Cancels a background copy.
            OffloadCancel = 66, offload_cancel, 2..=2, within, current, takes, once, fixed 8;
            /// How far a copy in the background is.
            OffloadStatus = 67, offload_status, 2..=2, within, current, takes, repeatable, fixed 24;
            /// Reads data and holes.
            ReadPlus = 68, read_plus, 2..=2, within, current, takes, repeatable, and 16;
            /// Finds data or a hole.
            Seek = 69, seek, 2..=2, within, current, takes, repeatable, fixed 20;
            /// Writes a pattern.
            WriteSame = 70, write_same, 2..=2, within, current, takes, once, fixed 48;
            /// Shares a range between files.
            Clone = 71, clone, 2..=2, within, both, takes, once, fixed 8;
            /// Reads an extended attribute.
            Getxattr = 72, getxattr, 2..=2, within, current, none, repeatable, and 12;
            /// Sets an extended attribute.
            Setxattr = 73, setxattr, 2..=2, within, current, none, once, fixed 28;
            /// Names of the extended attributes.
            Listxattrs = 74, listxattrs, 2..=2, within, current, none, repeatable, and 24;
            /// Removes an extended attribute.
            Removexattr = 75, removexattr, 2..=2, within, current, none, once, fixed 28;
        }
    };
}

/// Where a compound of minor version 1 or later may have an operation (RFC 8881 section 2.10.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceRule {
    /// SEQUENCE: only as the first operation.
    First,
    /// After a SEQUENCE, or without one as the only operation.
    Alone,
    /// After a SEQUENCE.
    Within,
}

/// The filehandles that an operation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filehandles {
    /// None.
    None,
    /// The current one.
    Current,
    /// The current and the saved one.
    Both,
}

/// What an operation does with stateids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateIdRule {
    /// Nothing.
    None,
    /// Uses one, which may be the current one.
    Takes,
    /// Creates one, which becomes the current one (and may use one).
    Sets,
}

/// Most bytes of a result, its number and status included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyBound {
    /// So many.
    Fixed(usize),
    /// This many, plus the data, names or lists that were requested.
    And(usize),
}

impl ReplyBound {
    /// The bytes that are not data, names or lists.
    pub const fn fixed_bytes(self) -> usize {
        match self {
            Self::Fixed(bytes) | Self::And(bytes) => bytes,
        }
    }
}

/// Why the next operation of a compound cannot be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpError {
    /// No minor version has an operation with this number.
    Illegal(u32),
    /// Its arguments cannot be read.
    BadXdr(OpCode),
    /// The compound ends before the operation begins.
    Truncated,
}

macro_rules! rule {
    (first) => {
        SequenceRule::First
    };
    (alone) => {
        SequenceRule::Alone
    };
    (within) => {
        SequenceRule::Within
    };
    (handles none) => {
        Filehandles::None
    };
    (handles current) => {
        Filehandles::Current
    };
    (handles both) => {
        Filehandles::Both
    };
    (stateid none) => {
        StateIdRule::None
    };
    (stateid takes) => {
        StateIdRule::Takes
    };
    (stateid sets) => {
        StateIdRule::Sets
    };
    (repeatable) => {
        true
    };
    (once) => {
        false
    };
    (reply fixed $bytes:literal) => {
        ReplyBound::Fixed($bytes)
    };
    (reply and $bytes:literal) => {
        ReplyBound::And($bytes)
    };
}

macro_rules! declare {
    ($($(#[$meta:meta])* $name:ident = $number:literal, $op:ident, $minors:expr, $place:ident,
        $handles:ident, $stateid:ident, $kind:ident, $bound:ident $bytes:literal;)*) => {
        declare_codes! {
            $($(#[$meta])* $name = $number, $op, $minors;)*
            /// Discards delegations kept over a client's restart.
            Delegpurge = 7, delegpurge, 0..=2;
            /// Goes to the directory of named attributes.
            Openattr = 19, openattr, 0..=2;
            /// Asks for a directory delegation.
            GetDirDelegation = 46, get_dir_delegation, 1..=2;
            /// Where a pNFS device is.
            Getdeviceinfo = 47, getdeviceinfo, 1..=2;
            /// Which pNFS devices there are.
            Getdevicelist = 48, getdevicelist, 1..=1;
            /// Commits writes through a layout.
            Layoutcommit = 49, layoutcommit, 1..=2;
            /// Asks for a layout.
            Layoutget = 50, layoutget, 1..=2;
            /// Gives a layout back.
            Layoutreturn = 51, layoutreturn, 1..=2;
            /// Sets the session's shared secret.
            SetSsv = 54, set_ssv, 1..=2;
            /// Asks for a delegation.
            WantDelegation = 56, want_delegation, 1..=2;
            /// Authorises another server to copy from this one.
            CopyNotify = 61, copy_notify, 2..=2;
            /// Reports errors of pNFS devices.
            Layouterror = 64, layouterror, 2..=2;
            /// Reports use of pNFS devices.
            Layoutstats = 65, layoutstats, 2..=2;
        }

        impl OpCode {
            /// Its place in a compound.
            pub const fn sequence_rule(self) -> SequenceRule {
                match self { $(Self::$name => rule!($place),)* _ => SequenceRule::Within }
            }

            /// The filehandles that it needs.
            pub const fn filehandles(self) -> Filehandles {
                match self { $(Self::$name => rule!(handles $handles),)* _ => Filehandles::None }
            }

            /// What it does with stateids.
            pub const fn stateid_rule(self) -> StateIdRule {
                match self { $(Self::$name => rule!(stateid $stateid),)* _ => StateIdRule::None }
            }

            /// Whether doing it twice is as good as once.
            pub const fn is_idempotent(self) -> bool {
                match self { $(Self::$name => rule!($kind),)* _ => true }
            }

            /// Most bytes of its result.
            pub const fn reply_bound(self) -> ReplyBound {
                match self {
                    $(Self::$name => rule!(reply $bound $bytes),)*
                    _ => ReplyBound::Fixed(8),
                }
            }
        }

        /// An operation with its arguments.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "it is read, run and dropped one at a time")]
        pub enum Op {
            $($(#[$meta])* $name(op::$op::Args),)*
            /// Known, but not served; its arguments are not decoded.
            Refused(OpCode),
        }

        impl Op {
            /// Which operation.
            pub const fn code(&self) -> OpCode {
                match self { $(Self::$name(_) => OpCode::$name,)* Self::Refused(code) => *code }
            }

            /// Decodes the next operation of a compound.
            ///
            /// # Errors
            /// See [`OpError`]; nothing after it can be decoded either.
            pub fn decode_next(d: &mut Decoder) -> Result<Self, OpError> {
                let number = d.u32().map_err(|_| OpError::Truncated)?;
                let code = OpCode::from_number(number).ok_or(OpError::Illegal(number))?;
                match code {
                    $(OpCode::$name => {
                        d.get().map(Self::$name).map_err(|_| OpError::BadXdr(code))
                    })*
                    _ => Ok(Self::Refused(code)),
                }
            }
        }

        /// The number, then the arguments.
        impl Encode for Op {
            fn encode(&self, e: &mut Encoder) {
                e.u32(self.code() as u32);
                match self { $(Self::$name(args) => e.put(args),)* Self::Refused(_) => {} }
            }
        }

        /// The result of an operation.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "it is made and encoded one at a time")]
        pub enum OpRes {
            $($(#[$meta])* $name(op::$op::Res),)*
            /// Failed before it was executed: a rule of the compound, arguments, or not served.
            Failed(OpCode, Error),
            /// There is no such operation.
            Illegal,
        }

        impl OpRes {
            /// Success, or why it failed.
            pub fn status(&self) -> Status {
                match self {
                    $(Self::$name(res) => Outcome::status(res),)*
                    Self::Failed(_, error) => Err(*error),
                    Self::Illegal => Err(Error::OpIllegal),
                }
            }

            /// Decodes the next result of a compound's reply.
            ///
            /// # Errors
            /// The bytes are no result.
            pub fn decode_next(d: &mut Decoder) -> weir_xdr::Result<Self> {
                let number = d.u32()?;
                if number == ILLEGAL {
                    let _: Error = d.get()?;
                    return Ok(Self::Illegal);
                }
                let code = OpCode::from_number(number).ok_or(weir_xdr::Error::BadValue)?;
                match code {
                    $(OpCode::$name => d.get().map(Self::$name),)*
                    _ => Ok(Self::Failed(code, d.get()?)),
                }
            }
        }

        /// The number, then the result.
        impl Encode for OpRes {
            fn encode(&self, e: &mut Encoder) {
                match self {
                    $(Self::$name(res) => {
                        e.u32(OpCode::$name as u32);
                        e.put(res);
                    })*
                    Self::Failed(code, error) => {
                        e.u32(*code as u32);
                        e.put(error);
                        if *code == OpCode::Setattr {
                            // Its result has the attributes that were set even if it fails.
                            e.put(&super::bitmap::Bitmap::EMPTY);
                        }
                    }
                    Self::Illegal => {
                        e.u32(ILLEGAL);
                        e.put(&Error::OpIllegal);
                    }
                }
            }
        }

        #[cfg(test)]
        mod tests {
            use super::*;

            $(#[test]
            fn $op() {
                let bound = OpCode::$name.reply_bound();
                for (variable, len) in crate::v4::op::$op::result_samples() {
                    let max = bound.fixed_bytes() + variable;
                    assert!(4 + len <= max, "a result of {} bytes, the table says {max}", 4 + len);
                    assert!(variable == 0 || matches!(bound, ReplyBound::And(_)));
                }
                assert_eq!(OpCode::from_number($number), Some(OpCode::$name));
            })*

            #[test]
            fn numbers_and_minor_versions() {
                assert_eq!(OpCode::from_number(0), None);
                assert_eq!(OpCode::from_number(76), None);
                for number in 3..=75 {
                    assert_eq!(OpCode::from_number(number).map(|c| c as u32), Some(number));
                }
                assert!(OpCode::Renew.is_in(0) && !OpCode::Renew.is_in(1));
                assert!(OpCode::Sequence.is_in(1) && !OpCode::Sequence.is_in(0));
                assert!(OpCode::ReadPlus.is_in(2) && !OpCode::ReadPlus.is_in(1));
            }

            #[test]
            fn unreadable_operations_are_distinguished() {
                let next = |words| Op::decode_next(&mut Decoder::new(weir_xdr::sample::hex(words)));
                assert_eq!(next(""), Err(OpError::Truncated));
                assert_eq!(next("00000002"), Err(OpError::Illegal(2)));
                assert_eq!(next("00000016 000000ff"), Err(OpError::BadXdr(OpCode::Putfh)));
                assert_eq!(next("00000032 ffffffff"), Ok(Op::Refused(OpCode::Layoutget)));
            }
        }
    };
}

macro_rules! declare_codes {
    ($($(#[$meta:meta])* $name:ident = $number:literal, $op:ident, $minors:expr;)*) => {
        numbered! {
            /// An operation. Within the served and the refused ones they are by number.
            pub enum OpCode { $($(#[$meta])* $name = $number, $op;)* }
        }

        impl OpCode {
            /// Whether minor version `minor` has it.
            pub fn is_in(self, minor: u32) -> bool {
                match self { $(Self::$name => ($minors).contains(&minor),)* }
            }
        }
    };
}

v4_operations!(declare);

/// The number of ILLEGAL, for unknown operations.
const ILLEGAL: u32 = 10044;
