//! Headers of calls and replies (RFC 5531 section 9).

use crate::{AuthStatus, OpaqueAuth};
use weir_xdr::{
    Bytes, Decode, Decoder, Encode, Encoder, Error, Result, xdr_enum, xdr_struct, xdr_union,
};

/// The version of the RPC protocol.
pub const RPC_VERSION: u32 = 2;

xdr_enum! {
    /// Direction of a message.
    pub enum MessageType {
        /// To a service.
        Call = 0,
        /// From a service.
        Reply = 1,
    }
}

/// A record's message type, and its transaction: for connections that carry calls both ways.
///
/// # Errors
/// The record does not begin like an RPC message.
pub fn message_type(record: &Bytes) -> Result<(u32, MessageType)> {
    let mut d = Decoder::new(record.slice(..record.len().min(8)));
    Ok((d.get()?, d.get()?))
}

/// A version of an RPC program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProgramId {
    /// Program number.
    pub program: u32,
    /// Its version.
    pub version: u32,
}

/// The header of a call; the procedure's arguments follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallHeader {
    /// Transaction, repeated in the reply.
    pub xid: u32,
    /// Program.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure of the program.
    pub procedure: u32,
    /// The caller's credential.
    pub cred: OpaqueAuth,
    /// Its verifier.
    pub verf: OpaqueAuth,
}

impl CallHeader {
    /// Decodes a call's header and leaves the arguments in `d`.
    ///
    /// # Errors
    /// The message is not a call that can be served; [`CallError::reply`] returns the answer.
    pub fn decode(d: &mut Decoder) -> std::result::Result<Self, CallError> {
        let xid = d.u32().map_err(|_| CallError::NotACall)?;
        if d.get() != Ok(MessageType::Call) {
            return Err(CallError::NotACall);
        }
        if d.u32().map_err(|_| CallError::NotACall)? != RPC_VERSION {
            return Err(CallError::Version { xid });
        }
        let mut word = || d.u32().map_err(|_| CallError::NotACall);
        let (program, version, procedure) = (word()?, word()?, word()?);
        let cred = d.get().map_err(|_| CallError::Auth { xid, status: AuthStatus::BadCred })?;
        let verf = d.get().map_err(|_| CallError::Auth { xid, status: AuthStatus::BadVerf })?;
        Ok(Self { xid, program, version, procedure, cred, verf })
    }
}

impl Encode for CallHeader {
    fn encode(&self, e: &mut Encoder) {
        e.u32(self.xid);
        e.put(&MessageType::Call);
        for word in [RPC_VERSION, self.program, self.version, self.procedure] {
            e.u32(word);
        }
        e.put(&self.cred);
        e.put(&self.verf);
    }
}

/// Why a message is not a call that can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It is another kind of message, or its header is truncated.
    #[error("the message is not an RPC call")]
    NotACall,
    /// It is a call of another version of the RPC protocol.
    #[error("the call is not of RPC version 2")]
    Version {
        /// Transaction.
        xid: u32,
    },
    /// The credential or verifier is too long or truncated.
    #[error("the call's credential or verifier is malformed")]
    Auth {
        /// Transaction.
        xid: u32,
        /// Which of the two.
        status: AuthStatus,
    },
}

impl CallError {
    /// The answer; `None`: there can be none, so the connection should be closed.
    pub fn reply(self) -> Option<ReplyHeader> {
        match self {
            Self::NotACall => None,
            Self::Version { xid } => Some(ReplyHeader::denied(
                xid,
                Denial::RpcMismatch(VersionRange { low: RPC_VERSION, high: RPC_VERSION }),
            )),
            Self::Auth { xid, status } => Some(ReplyHeader::denied(xid, Denial::AuthError(status))),
        }
    }
}

xdr_struct! {
    /// The versions that a server offers, both ends included.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct VersionRange {
        /// The lowest.
        pub low: u32,
        /// The highest.
        pub high: u32,
    }
}

xdr_union! {
    /// The outcome of an accepted call.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum AcceptStatus {
        /// It was executed; results follow.
        Success = 0,
        /// The server has no such program.
        ProgUnavail = 1,
        /// The server has the program in these versions only.
        ProgMismatch(VersionRange) = 2,
        /// The program has no such procedure.
        ProcUnavail = 3,
        /// The arguments could not be decoded.
        GarbageArgs = 4,
        /// The server failed (no memory, say).
        SystemErr = 5,
    }

    /// Why a call was denied.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Denial {
        /// RPC version mismatch; the server supports these only.
        RpcMismatch(VersionRange) = 0,
        /// The caller could not be authenticated.
        AuthError(AuthStatus) = 1,
    }

    /// A reply without its transaction.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum ReplyBody {
        /// The call was accepted.
        Accepted(Accepted) = 0,
        /// The call was denied.
        Denied(Denial) = 1,
    }
}

impl From<Error> for AcceptStatus {
    fn from(_: Error) -> Self {
        Self::GarbageArgs
    }
}

impl From<AcceptStatus> for ReplyBody {
    fn from(status: AcceptStatus) -> Self {
        Self::Accepted(Accepted { verf: OpaqueAuth::NONE, status })
    }
}

xdr_struct! {
    /// An accepted call's verifier and status.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Accepted {
        /// The server's verifier.
        pub verf: OpaqueAuth,
        /// The outcome of the call.
        pub status: AcceptStatus,
    }
}

/// The header of a reply; results follow it after success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// Transaction of the call.
    pub xid: u32,
    /// Accepted or denied.
    pub body: ReplyBody,
}

impl ReplyHeader {
    /// An accepted call's reply, with no verifier.
    pub const fn accepted(xid: u32, status: AcceptStatus) -> Self {
        Self { xid, body: ReplyBody::Accepted(Accepted { verf: OpaqueAuth::NONE, status }) }
    }

    /// A denied call's reply.
    pub const fn denied(xid: u32, denial: Denial) -> Self {
        Self { xid, body: ReplyBody::Denied(denial) }
    }

    /// Whether results follow.
    pub const fn is_success(&self) -> bool {
        matches!(self.body, ReplyBody::Accepted(Accepted { status: AcceptStatus::Success, .. }))
    }
}

impl Encode for ReplyHeader {
    fn encode(&self, e: &mut Encoder) {
        e.u32(self.xid);
        e.put(&MessageType::Reply);
        e.put(&self.body);
    }
}

impl Decode for ReplyHeader {
    const MIN_BYTES: usize = 16;

    fn decode(d: &mut Decoder) -> Result<Self> {
        let xid = d.u32()?;
        if d.get::<MessageType>()? != MessageType::Reply {
            return Err(Error::BadValue);
        }
        Ok(Self { xid, body: d.get()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_xdr::sample::{check, hex, wire};

    fn decode_call(bytes: &str) -> std::result::Result<CallHeader, CallError> {
        CallHeader::decode(&mut Decoder::new(hex(bytes)))
    }

    #[test]
    fn a_call() {
        let bytes = "0000abcd 00000000 00000002 000186a3 00000004 00000001
                     00000000 00000000 00000000 00000000";
        let call = CallHeader {
            xid: 0xabcd,
            program: 100_003,
            version: 4,
            procedure: 1,
            cred: OpaqueAuth::NONE,
            verf: OpaqueAuth::NONE,
        };
        assert_eq!(wire(&call), hex(bytes));
        assert_eq!(decode_call(bytes), Ok(call));
        assert_eq!(message_type(&hex(bytes)), Ok((0xabcd, MessageType::Call)));
    }

    #[test]
    fn calls_that_cannot_be_served() {
        assert_eq!(decode_call("0000abcd"), Err(CallError::NotACall));
        assert_eq!(decode_call("0000abcd 00000001 00000000"), Err(CallError::NotACall));
        let version = decode_call("0000abcd 00000000 00000003").unwrap_err();
        assert_eq!(version, CallError::Version { xid: 0xabcd });
        assert_eq!(
            version.reply().map(|r| wire(&r)),
            Some(hex("0000abcd 00000001 00000001 00000000 00000002 00000002"))
        );
        let long =
            decode_call("0000abcd 00000000 00000002 000186a3 00000004 00000001 00000001 00000191")
                .unwrap_err();
        assert_eq!(
            long.reply().map(|r| wire(&r)),
            Some(hex("0000abcd 00000001 00000001 00000001 00000001"))
        );
        assert_eq!(CallError::NotACall.reply(), None);
    }

    #[test]
    fn replies() {
        let accepted = |status| ReplyHeader::accepted(7, status);
        check(
            &accepted(AcceptStatus::Success),
            "00000007 00000001 00000000 00000000 00000000 00000000",
        );
        check(
            &accepted(AcceptStatus::ProgMismatch(VersionRange { low: 3, high: 4 })),
            "00000007 00000001 00000000 00000000 00000000 00000002 00000003 00000004",
        );
        check(
            &accepted(AcceptStatus::GarbageArgs),
            "00000007 00000001 00000000 00000000 00000000 00000004",
        );
        check(
            &ReplyHeader::denied(7, Denial::AuthError(AuthStatus::TooWeak)),
            "00000007 00000001 00000001 00000001 00000005",
        );
        assert!(accepted(AcceptStatus::Success).is_success());
        assert!(!accepted(AcceptStatus::SystemErr).is_success());
    }
}
