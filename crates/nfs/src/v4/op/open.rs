//! OPEN (RFC 8881 section 18.16, RFC 9754 sections 4 and 5): opens a regular file.

use crate::macros::{samples, wire_flags};
use crate::v4::acl::Ace;
use crate::v4::attr::Fattr;
use crate::v4::bitmap::Bitmap;
use crate::v4::error::Error;
use crate::v4::types::{ChangeInfo, Name, StateId, StateOwner, Verifier};
use weir_xdr::{xdr_enum, xdr_struct, xdr_union};

wire_flags! {
    /// The requested access, and the client's wants for delegations (minor version 1 on).
    pub struct ShareAccess {
        /// To read.
        const READ = 1;
        /// To write.
        const WRITE = 2;
        /// To read and write.
        const BOTH = 3;
        /// The bits that encode [`want`](Self::want).
        const WANT_MASK = 0xff00;
        /// Wants a read delegation.
        const WANT_READ_DELEG = 0x0100;
        /// Wants a write delegation.
        const WANT_WRITE_DELEG = 0x0200;
        /// Wants a delegation of either kind.
        const WANT_ANY_DELEG = 0x0300;
        /// Wants no delegation.
        const WANT_NO_DELEG = 0x0400;
        /// Wants no delegation, now or later.
        const WANT_CANCEL = 0x0500;
        /// Wants to be notified when resources allow a delegation.
        const SIGNAL_WHEN_RESOURCE_AVAILABLE = 0x0001_0000;
        /// Wants the delegation when contention for the file has ended.
        const PUSH_WHEN_UNCONTENDED = 0x0002_0000;
        /// With a delegation, wants to answer for the file's times (minor version 2).
        const WANT_DELEG_TIMESTAMPS = 0x0010_0000;
        /// Wants an open or a delegation, not both (minor version 2).
        const WANT_OPEN_XOR_DELEGATION = 0x0020_0000;
    }

    /// Access that others shall not have.
    pub struct ShareDeny {
        /// To read.
        const READ = 1;
        /// To write.
        const WRITE = 2;
        /// To read or write.
        const BOTH = 3;
    }

    /// What the client must know of an open.
    pub struct ResultFlags {
        /// OPEN_CONFIRM must follow (minor version 0).
        const CONFIRM = 0x02;
        /// Locks are split and merged as in POSIX.
        const LOCKTYPE_POSIX = 0x04;
        /// The file survives its removal while it is open.
        const PRESERVE_UNLINKED = 0x08;
        /// There is a delegation and no open; the open's stateid is all zeros (minor version 2).
        const NO_OPEN_STATEID = 0x10;
        /// The server may call back when a lock may be available.
        const MAY_NOTIFY_LOCK = 0x20;
    }
}

/// What a client wants of delegations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// The server chooses.
    NoPreference,
    /// A read delegation.
    Read,
    /// A write delegation.
    Write,
    /// Either.
    Any,
    /// None.
    None,
    /// None, and earlier wants are withdrawn.
    Cancel,
}

impl ShareAccess {
    /// The access alone, without the wants.
    #[must_use]
    pub const fn access(self) -> Self {
        self.intersection(Self::BOTH)
    }

    /// The client's want for a delegation, unless the bits are invalid.
    pub const fn want(self) -> Option<Want> {
        match self.bits() & Self::WANT_MASK.bits() {
            0 => Some(Want::NoPreference),
            0x0100 => Some(Want::Read),
            0x0200 => Some(Want::Write),
            0x0300 => Some(Want::Any),
            0x0400 => Some(Want::None),
            0x0500 => Some(Want::Cancel),
            _ => None,
        }
    }
}

xdr_enum! {
    /// Kinds of delegation.
    pub enum DelegationType {
        /// None.
        None = 0,
        /// Read.
        Read = 1,
        /// Write.
        Write = 2,
        /// None, with a reason (minor version 1 on).
        NoneExt = 3,
        /// Read; the client answers for the time of access (minor version 2).
        ReadAttrs = 4,
        /// Write; the client answers for the times (minor version 2).
        WriteAttrs = 5,
    }
}

xdr_union! {
    /// Whether to create the file (`openflag4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum How {
        /// It must be there.
        NoCreate = 0,
        /// Make it.
        Create(CreateHow) = 1,
    }

    /// How to treat an existing name (`createhow4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[allow(clippy::large_enum_variant, reason = "it is read, run and dropped one at a time")]
    pub enum CreateHow {
        /// Use the file, and set only its size if that is among the attributes.
        Unchecked(Fattr) = 0,
        /// Fail.
        Guarded(Fattr) = 1,
        /// Fail, unless a call with this verifier created it.
        Exclusive(Verifier) = 2,
        /// The same, with attributes (minor version 1 on).
        Exclusive41(CreateVerifier) = 3,
    }

    /// The file to open, and the kind of claim (`open_claim4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Claim {
        /// A name in the current directory; a new open.
        Null(Name) = 0,
        /// The current file; was open before the server restarted, under this delegation.
        Previous(DelegationType) = 1,
        /// A name in the current directory; opened under a delegation.
        DelegateCur(DelegateCur) = 2,
        /// A name in the current directory; opened under a delegation before the client restarted.
        DelegatePrev(Name) = 3,
        /// The current file; a new open (minor version 1 on).
        Fh = 4,
        /// The current file; opened under this delegation (minor version 1 on).
        DelegCurFh(StateId) = 5,
        /// The current file; opened under a delegation before the client restarted (minor version
        /// 1 on).
        DelegPrevFh = 6,
    }

    /// How much a holder of a write delegation may write before it must ask
    /// (`nfs_space_limit4`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum SpaceLimit {
        /// Until the file has so many bytes.
        Size(u64) = 1,
        /// So many blocks.
        Blocks(ModifiedLimit) = 2,
    }

    /// The delegation granted with an open (`open_delegation4`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Delegation {
        /// None.
        None = 0,
        /// To read.
        Read(ReadDelegation) = 1,
        /// To read and write.
        Write(WriteDelegation) = 2,
        /// None, and why (minor version 1 on, if the client wanted one).
        NoneExt(WhyNone) = 3,
        /// To read; the client answers for the time of access (minor version 2).
        ReadAttrs(ReadDelegation) = 4,
        /// To read and write; the client answers for the times (minor version 2).
        WriteAttrs(WriteDelegation) = 5,
    }

    /// Why there is no delegation (`open_none_delegation4`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum WhyNone {
        /// The client wanted none.
        NotWanted = 0,
        /// Contention; whether the server will push one later.
        Contention(bool) = 1,
        /// Short of resources; whether the server will signal when they are available.
        Resource(bool) = 2,
        /// Not for this type of file.
        NotSuppFtype = 3,
        /// Not to write, for this type of file.
        WriteNotSuppFtype = 4,
        /// A read delegation cannot be made a write delegation.
        NotSuppUpgrade = 5,
        /// A write delegation cannot be made a read delegation.
        NotSuppDowngrade = 6,
        /// The client withdrew its wants.
        Cancelled = 7,
        /// A directory.
        IsDir = 8,
    }
}

xdr_struct! {
    /// What to open, and how.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The open owner's next sequence id (minor version 0).
        pub seqid: u32,
        /// Access, and the client's wants for delegations.
        pub share_access: ShareAccess,
        /// What others shall not do.
        pub share_deny: ShareDeny,
        /// The open owner.
        pub owner: StateOwner,
        /// Whether to make the file.
        pub how: How,
        /// What is opened.
        pub claim: Claim,
    }

    /// A verifier that identifies retries, and attributes (`creatverfattr`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CreateVerifier {
        /// The verifier.
        pub verifier: Verifier,
        /// Attributes of the new file.
        pub attrs: Fattr,
    }

    /// A name that is opened under a delegation.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DelegateCur {
        /// The delegation.
        pub delegate_stateid: StateId,
        /// The name.
        pub file: Name,
    }

    /// A number of blocks.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ModifiedLimit {
        /// How many.
        pub num_blocks: u32,
        /// Bytes in one.
        pub bytes_per_block: u32,
    }

    /// A read delegation.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ReadDelegation {
        /// Its stateid.
        pub stateid: StateId,
        /// The client has to return it at once.
        pub recall: bool,
        /// Users that may open the file without asking the server.
        pub permissions: Ace,
    }

    /// A write delegation.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct WriteDelegation {
        /// Its stateid.
        pub stateid: StateId,
        /// The client has to return it at once.
        pub recall: bool,
        /// How much may be written without asking the server.
        pub space_limit: SpaceLimit,
        /// Users that may open the file without asking the server.
        pub permissions: Ace,
    }

    /// An open file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Opened {
        /// The open.
        pub stateid: StateId,
        /// The directory's change.
        pub change: ChangeInfo,
        /// What the client must know.
        pub flags: ResultFlags,
        /// Attributes set at the file's creation.
        pub attrs_set: Bitmap,
        /// The delegation.
        pub delegation: Delegation,
    }
}

/// The open; the file becomes the current one.
pub type Res = Result<Opened, Error>;

#[cfg(test)]
fn opened(delegation: Delegation) -> Opened {
    Opened {
        stateid: crate::v4::types::STATEID,
        change: ChangeInfo { atomic: true, before: 1, after: 2 },
        flags: ResultFlags::LOCKTYPE_POSIX,
        attrs_set: Bitmap::of(&[33]),
        delegation,
    }
}

#[cfg(test)]
const OPENED: &str = "00000000 00000007 61626364 65666768 696a6b6c
    00000001 00000000 00000001 00000000 00000002 00000004 00000002 00000000 00000002";

#[cfg(test)]
fn args(how: How, claim: Claim) -> Args {
    Args {
        seqid: 1,
        share_access: ShareAccess::READ | ShareAccess::WANT_NO_DELEG,
        share_deny: ShareDeny::WRITE,
        owner: StateOwner { client_id: 9, owner: "own".into() },
        how,
        claim,
    }
}

#[cfg(test)]
const ARGS: &str = "00000001 00000401 00000002 00000000 00000009 00000003 6f776e00";

#[cfg(test)]
fn ace() -> Ace {
    use crate::v4::acl::{AceFlags, AceMask, AceType};
    Ace {
        kind: AceType::Allow,
        flags: AceFlags::empty(),
        mask: AceMask::READ_DATA,
        who: "OWNER@".into(),
    }
}

#[cfg(test)]
const ACE: &str = "00000000 00000000 00000001 00000006 4f574e45 52400000";

samples! {
    args: [
        args(How::NoCreate, Claim::Null("a".into())) =>
            &format!("{ARGS} 00000000 00000000 00000001 61000000"),
        args(How::NoCreate, Claim::Previous(DelegationType::Write)) =>
            &format!("{ARGS} 00000000 00000001 00000002"),
        args(
            How::NoCreate,
            Claim::DelegateCur(DelegateCur {
                delegate_stateid: crate::v4::types::STATEID,
                file: "a".into(),
            }),
        ) => &format!(
            "{ARGS} 00000000 00000002 00000007 61626364 65666768 696a6b6c 00000001 61000000"
        ),
        args(How::NoCreate, Claim::DelegatePrev("a".into())) =>
            &format!("{ARGS} 00000000 00000003 00000001 61000000"),
        args(How::NoCreate, Claim::Fh) => &format!("{ARGS} 00000000 00000004"),
        args(How::NoCreate, Claim::DelegCurFh(crate::v4::types::STATEID)) =>
            &format!("{ARGS} 00000000 00000005 00000007 61626364 65666768 696a6b6c"),
        args(How::NoCreate, Claim::DelegPrevFh) => &format!("{ARGS} 00000000 00000006"),
        args(How::Create(CreateHow::Unchecked(Fattr::default())), Claim::Fh) =>
            &format!("{ARGS} 00000001 00000000 00000000 00000000 00000004"),
        args(How::Create(CreateHow::Guarded(Fattr::default())), Claim::Fh) =>
            &format!("{ARGS} 00000001 00000001 00000000 00000000 00000004"),
        args(How::Create(CreateHow::Exclusive(*b"verifier")), Claim::Fh) =>
            &format!("{ARGS} 00000001 00000002 76657269 66696572 00000004"),
        args(
            How::Create(CreateHow::Exclusive41(CreateVerifier {
                verifier: *b"verifier",
                attrs: Fattr::default(),
            })),
            Claim::Null("a".into()),
        ) => &format!(
            "{ARGS} 00000001 00000003 76657269 66696572 00000000 00000000
            00000000 00000001 61000000"
        ),
    ],
    results: [
        Ok(opened(Delegation::None)) => &format!("{OPENED} 00000000");
        Ok(opened(Delegation::Read(ReadDelegation {
            stateid: crate::v4::types::STATEID,
            recall: true,
            permissions: ace(),
        }))) => &format!(
            "{OPENED} 00000001 00000007 61626364 65666768 696a6b6c 00000001 {ACE}"
        ), variable 8;
        Ok(opened(Delegation::Write(WriteDelegation {
            stateid: crate::v4::types::STATEID,
            recall: false,
            space_limit: SpaceLimit::Size(1 << 32),
            permissions: ace(),
        }))) => &format!(
            "{OPENED} 00000002 00000007 61626364 65666768 696a6b6c 00000000
            00000001 00000001 00000000 {ACE}"
        ), variable 8;
        Ok(opened(Delegation::Write(WriteDelegation {
            stateid: crate::v4::types::STATEID,
            recall: false,
            space_limit: SpaceLimit::Blocks(ModifiedLimit { num_blocks: 3, bytes_per_block: 512 }),
            permissions: ace(),
        }))) => &format!(
            "{OPENED} 00000002 00000007 61626364 65666768 696a6b6c 00000000
            00000002 00000003 00000200 {ACE}"
        ), variable 8;
        Ok(opened(Delegation::ReadAttrs(ReadDelegation {
            stateid: crate::v4::types::STATEID,
            recall: false,
            permissions: ace(),
        }))) => &format!(
            "{OPENED} 00000004 00000007 61626364 65666768 696a6b6c 00000000 {ACE}"
        ), variable 8;
        Ok(opened(Delegation::WriteAttrs(WriteDelegation {
            stateid: crate::v4::types::STATEID,
            recall: false,
            space_limit: SpaceLimit::Size(0),
            permissions: ace(),
        }))) => &format!(
            "{OPENED} 00000005 00000007 61626364 65666768 696a6b6c 00000000
            00000001 00000000 00000000 {ACE}"
        ), variable 8;
        Ok(opened(Delegation::NoneExt(WhyNone::NotWanted))) =>
            &format!("{OPENED} 00000003 00000000");
        Ok(opened(Delegation::NoneExt(WhyNone::Contention(true)))) =>
            &format!("{OPENED} 00000003 00000001 00000001");
        Ok(opened(Delegation::NoneExt(WhyNone::Resource(false)))) =>
            &format!("{OPENED} 00000003 00000002 00000000");
        Ok(opened(Delegation::NoneExt(WhyNone::IsDir))) =>
            &format!("{OPENED} 00000003 00000008");
        Err(Error::ShareDenied) => "0000271f";
    ],
}
