//! Operations of the callback program (RFC 8881 section 20, RFC 7862 section 16): the server calls,
//! the client answers.
//! Every operation has a row in the table below and a file here. Operations of a second list are
//! known but rejected by the client: they need no codec, because that answer ends the compound.

use super::error::Error;
use super::types::Status;
use crate::macros::numbered;
use weir_xdr::{Decode, Decoder, Encode, Encoder};

pub mod getattr;
pub mod notify_lock;
pub mod offload;
pub mod recall;
pub mod recall_any;
pub mod recall_slot;
pub mod sequence;
pub mod wants_cancelled;

/// The number of ILLEGAL, for unknown operations.
const ILLEGAL: u32 = 10044;

/// Why the next operation of a callback cannot be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CbOpError {
    /// No minor version has an operation with this number.
    Illegal(u32),
    /// Its arguments cannot be read.
    BadXdr(CbOpCode),
    /// The compound ends before the operation begins.
    Truncated,
}

/// A row is: what it does, the variant of [`CbOpCode`], its number, its file, the first minor
/// version that has it.
macro_rules! callbacks {
    (
        served {
            $($(#[$meta:meta])* $name:ident = $number:literal, $op:ident, $since:literal;)*
        }
        refused {
            $($(#[$rmeta:meta])* $rname:ident = $rnumber:literal, $rop:ident, $rsince:literal;)*
        }
    ) => {
        numbered! {
            /// An operation of the callback program. Within the served and the refused ones they
            /// are by number.
            pub enum CbOpCode {
                $($(#[$meta])* $name = $number, $op;)*
                $($(#[$rmeta])* $rname = $rnumber, $rop;)*
            }
        }

        impl CbOpCode {
            /// Whether minor version `minor` has it.
            pub const fn is_in(self, minor: u32) -> bool {
                let since = match self { $(Self::$name => $since,)* $(Self::$rname => $rsince,)* };
                since <= minor
            }
        }

        /// A callback operation with its arguments.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum CbOp {
            $($(#[$meta])* $name($op::Args),)*
            /// Known, but rejected; its arguments are not decoded.
            Refused(CbOpCode),
        }

        impl CbOp {
            /// Which operation.
            pub const fn code(&self) -> CbOpCode {
                match self { $(Self::$name(_) => CbOpCode::$name,)* Self::Refused(code) => *code }
            }

            /// Decodes the next operation of a callback.
            ///
            /// # Errors
            /// See [`CbOpError`]; nothing after it can be decoded either.
            pub fn decode_next(d: &mut Decoder) -> Result<Self, CbOpError> {
                let number = d.u32().map_err(|_| CbOpError::Truncated)?;
                let code = CbOpCode::from_number(number).ok_or(CbOpError::Illegal(number))?;
                match code {
                    $(CbOpCode::$name => {
                        d.get().map(Self::$name).map_err(|_| CbOpError::BadXdr(code))
                    })*
                    $(CbOpCode::$rname)|* => Ok(Self::Refused(code)),
                }
            }
        }

        /// The number, then the arguments.
        impl Encode for CbOp {
            fn encode(&self, e: &mut Encoder) {
                e.put(&self.code());
                match self { $(Self::$name(args) => e.put(args),)* Self::Refused(_) => {} }
            }
        }

        /// The result of a callback operation.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant, reason = "it is read, used and dropped one at a time")]
        pub enum CbOpRes {
            $($(#[$meta])* $name($op::Res),)*
            /// Failed before it was executed: a rule of the compound, arguments, or rejected.
            Failed(CbOpCode, Error),
            /// There is no such operation.
            Illegal,
        }

        impl CbOpRes {
            /// Success, or why it failed.
            pub fn status(&self) -> Status {
                match self {
                    $(Self::$name(res) => res.as_ref().map(|_| ()).map_err(|error| *error),)*
                    Self::Failed(_, error) => Err(*error),
                    Self::Illegal => Err(Error::OpIllegal),
                }
            }

            /// Decodes the next result of a callback's reply.
            ///
            /// # Errors
            /// The bytes are no result.
            pub fn decode_next(d: &mut Decoder) -> weir_xdr::Result<Self> {
                let number = d.u32()?;
                if number == ILLEGAL {
                    let _: Error = d.get()?;
                    return Ok(Self::Illegal);
                }
                let code = CbOpCode::from_number(number).ok_or(weir_xdr::Error::BadValue)?;
                match code {
                    $(CbOpCode::$name => d.get().map(Self::$name),)*
                    $(CbOpCode::$rname)|* => Ok(Self::Failed(code, d.get()?)),
                }
            }
        }

        /// See [`decode_next`](CbOpRes::decode_next).
        impl Decode for CbOpRes {
            const MIN_BYTES: usize = 8;

            fn decode(d: &mut Decoder) -> weir_xdr::Result<Self> {
                Self::decode_next(d)
            }
        }

        /// The number, then the result.
        impl Encode for CbOpRes {
            fn encode(&self, e: &mut Encoder) {
                match self {
                    $(Self::$name(res) => {
                        e.put(&CbOpCode::$name);
                        e.put(res);
                    })*
                    Self::Failed(code, error) => {
                        e.put(code);
                        e.put(error);
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
            use weir_xdr::sample::{check, hex, wire};

            $(#[test]
            fn $op() {
                assert!(!super::$op::result_samples().is_empty());
                assert_eq!(CbOpCode::from_number($number), Some(CbOpCode::$name));
            })*

            #[test]
            fn numbers_and_minor_versions() {
                for number in 3..=15 {
                    assert_eq!(CbOpCode::from_number(number).map(|c| c as u32), Some(number));
                }
                assert_eq!(CbOpCode::from_number(2), None);
                assert_eq!(CbOpCode::from_number(16), None);
                assert_eq!(CbOpCode::ALL.len(), 13);
                assert!(CbOpCode::Recall.is_in(0));
                assert!(CbOpCode::Sequence.is_in(1) && !CbOpCode::Sequence.is_in(0));
                assert!(CbOpCode::Offload.is_in(2) && !CbOpCode::Offload.is_in(1));
            }

            #[test]
            fn operations_are_written_and_read_by_number() {
                let op = CbOp::RecallSlot(recall_slot::Args { target_highest_slot: 5 });
                assert_eq!(wire(&op), hex("0000000a 00000005"));
                assert_eq!(CbOp::decode_next(&mut Decoder::new(wire(&op))), Ok(op));
            }

            #[test]
            fn unreadable_operations_are_distinguished() {
                let next = |words| CbOp::decode_next(&mut Decoder::new(hex(words)));
                assert_eq!(next(""), Err(CbOpError::Truncated));
                assert_eq!(next("00000002"), Err(CbOpError::Illegal(2)));
                assert_eq!(next("0000000a 0000"), Err(CbOpError::BadXdr(CbOpCode::RecallSlot)));
                assert_eq!(next("00000005 ffffffff"), Ok(CbOp::Refused(CbOpCode::Layoutrecall)));
            }

            #[test]
            fn results() {
                let failed = |code| CbOpRes::Failed(code, Error::NotSupp);
                for (res, words, status) in [
                    (CbOpRes::Recall(Ok(())), "00000004 00000000", Ok(())),
                    (
                        CbOpRes::Recall(Err(Error::BadStateId)),
                        "00000004 00002729",
                        Err(Error::BadStateId),
                    ),
                    (failed(CbOpCode::Layoutrecall), "00000005 00002714", Err(Error::NotSupp)),
                    (CbOpRes::Illegal, "0000273c 0000273c", Err(Error::OpIllegal)),
                ] {
                    check(&res, words);
                    assert_eq!(res.status(), status);
                }
            }
        }
    };
}

callbacks! {
    served {
        /// Attributes of a file for which the client holds a write delegation.
        Getattr = 3, getattr, 0;
        /// Asks for a delegation back.
        Recall = 4, recall, 0;
        /// Recalls any delegations or layouts.
        RecallAny = 8, recall_any, 1;
        /// Asks the client to use fewer slots.
        RecallSlot = 10, recall_slot, 1;
        /// Begins a callback in a session.
        Sequence = 11, sequence, 1;
        /// Delegations that the client wanted will not be granted.
        WantsCancelled = 12, wants_cancelled, 1;
        /// A lock that the client wanted may be available.
        NotifyLock = 13, notify_lock, 1;
        /// A copy in the background has ended.
        Offload = 15, offload, 2;
    }
    refused {
        /// Asks for a layout back.
        Layoutrecall = 5, layoutrecall, 1;
        /// A directory has changed.
        Notify = 6, notify, 1;
        /// Gives a delegation that was wanted.
        PushDeleg = 7, push_deleg, 1;
        /// Delegations can be had again.
        RecallableObjAvail = 9, recallable_obj_avail, 1;
        /// A pNFS device has changed.
        NotifyDeviceid = 14, notify_deviceid, 1;
    }
}
