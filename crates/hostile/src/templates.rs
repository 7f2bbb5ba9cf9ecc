//! The arguments of every call as lists of fields, from which valid calls are filled in.
//!
//! They are written from the protocols' XDR, not from this project's types: a test decodes what
//! they make with the decoders of `weir-nfs`.

use Field::*;
use weir_nfs::v3::Procedure;
use weir_nfs::v4::OpCode;
use weir_nfs::{nlm, nsm};

/// A part of a call's arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Field {
    /// This word.
    Is(u32),
    /// A word below this.
    Below(u32),
    /// One of these words.
    Flags(&'static [u32]),
    /// A position or length in a file.
    Offset,
    /// A number of bytes.
    Count,
    StateId,
    Handle,
    Name,
    /// A client ID and a name within it.
    Owner,
    /// A name of an owner or host.
    Label,
    ClientId,
    Session,
    Verifier,
    /// The sequence number of an owner of minor version 0.
    Sequence,
    /// A position in a directory.
    Cookie,
    /// A set of attributes.
    Bitmap,
    /// Values of attributes for NFSv4.
    Attrs,
    /// Values of attributes for NFSv3.
    Attrs3,
    /// Bytes of a file.
    Data,
    /// At most so many times these.
    List(u32, &'static [Field]),
    /// A word, and the fields that it selects.
    Union(&'static [(u32, &'static [Field])]),
}

pub(crate) type Fields = &'static [Field];

const CHANNEL: Fields = &[
    Is(0),
    Flags(&[1 << 20, 4096, 512, 0, u32::MAX]),
    Flags(&[1 << 20, 4096, 512, 0, u32::MAX]),
    Flags(&[4096, 0, 100, u32::MAX]),
    Flags(&[16, 1, 0, u32::MAX]),
    Flags(&[8, 1, 0, u32::MAX]),
    List(1, &[Below(4)]),
];
const CALLBACK_SEC: Fields =
    &[Union(&[(0, &[]), (1, &[Below(9), Label, Below(2), Below(2), List(2, &[Below(9)])])])];
const PROTECT: Fields = &[Bitmap, Bitmap];
const ACCESS: Field =
    Flags(&[1, 2, 3, 0x101, 0x202, 0x303, 0x403, 0x30_0203, 0x20_0101, 0x1_0203, 0]);
const CREATE_HOW: Field =
    Union(&[(0, &[Attrs]), (1, &[Attrs]), (2, &[Verifier]), (3, &[Verifier, Attrs])]);
const CLAIM: Field = Union(&[
    (0, &[Name]),
    (4, &[]),
    (0, &[Name]),
    (5, &[StateId]),
    (1, &[Below(6)]),
    (2, &[StateId, Name]),
    (3, &[Name]),
    (6, &[]),
]);
const LOCK_KIND: Field = Flags(&[1, 2, 3, 4]);
const RANGE: [Field; 2] = [Offset, Offset];
const NETLOC: Fields = &[Union(&[(1, &[Name]), (2, &[Name]), (3, &[Name, Name])])];

/// The arguments of the operations of NFSv4.
pub(crate) const V4: &[(OpCode, Fields)] = &[
    (
        OpCode::Open,
        &[Sequence, ACCESS, Below(4), Owner, Union(&[(0, &[]), (1, &[CREATE_HOW])]), CLAIM],
    ),
    (OpCode::Access, &[Below(512)]),
    (OpCode::Close, &[Sequence, StateId]),
    (OpCode::Commit, &[Offset, Count]),
    (
        OpCode::Create,
        &[
            Union(&[
                (2, &[]),
                (5, &[Name]),
                (3, &[Below(9), Below(9)]),
                (4, &[Below(9), Below(9)]),
                (6, &[]),
                (7, &[]),
                (1, &[]),
                (8, &[]),
                (9, &[]),
            ]),
            Name,
            Attrs,
        ],
    ),
    (OpCode::Delegreturn, &[StateId]),
    (OpCode::Getattr, &[Bitmap]),
    (OpCode::Getfh, &[]),
    (OpCode::Link, &[Name]),
    (
        OpCode::Lock,
        &[
            LOCK_KIND,
            Below(2),
            RANGE[0],
            RANGE[1],
            Union(&[(1, &[Sequence, StateId, Sequence, Owner]), (0, &[StateId, Sequence])]),
        ],
    ),
    (OpCode::Lockt, &[LOCK_KIND, RANGE[0], RANGE[1], Owner]),
    (OpCode::Locku, &[LOCK_KIND, Sequence, StateId, RANGE[0], RANGE[1]]),
    (OpCode::Lookup, &[Name]),
    (OpCode::Lookupp, &[]),
    (OpCode::Nverify, &[Attrs]),
    (OpCode::OpenConfirm, &[StateId, Sequence]),
    (OpCode::OpenDowngrade, &[StateId, Sequence, Below(4), Below(4)]),
    (OpCode::Putfh, &[Handle]),
    (OpCode::Putpubfh, &[]),
    (OpCode::Putrootfh, &[]),
    (OpCode::Read, &[StateId, Offset, Count]),
    (OpCode::Readdir, &[Cookie, Verifier, Count, Count, Bitmap]),
    (OpCode::Readlink, &[]),
    (OpCode::Remove, &[Name]),
    (OpCode::Rename, &[Name, Name]),
    (OpCode::Renew, &[ClientId]),
    (OpCode::Restorefh, &[]),
    (OpCode::Savefh, &[]),
    (OpCode::Secinfo, &[Name]),
    (OpCode::Setattr, &[StateId, Attrs]),
    (OpCode::Setclientid, &[Verifier, Label, Is(0x4000_0000), Label, Label, Below(4)]),
    (OpCode::SetclientidConfirm, &[ClientId, Verifier]),
    (OpCode::Verify, &[Attrs]),
    (OpCode::Write, &[StateId, Offset, Below(3), Data]),
    (OpCode::ReleaseLockowner, &[Owner]),
    (OpCode::BackchannelCtl, &[Is(0x4000_0000), List(3, CALLBACK_SEC)]),
    (OpCode::BindConnToSession, &[Session, Flags(&[1, 2, 3, 7]), Below(2)]),
    (
        OpCode::ExchangeId,
        &[
            Verifier,
            Label,
            Flags(&[0, 1, 0x1_0000, 0x4000_0000, 0x103, u32::MAX]),
            Union(&[
                (0, &[]),
                (0, &[]),
                (1, PROTECT),
                (2, &[Bitmap, Bitmap, List(2, &[Label]), List(2, &[Label]), Count, Count]),
            ]),
            List(1, &[Name, Name, Offset, Below(1_000_000_000)]),
        ],
    ),
    (
        OpCode::CreateSession,
        &[
            ClientId,
            Sequence,
            Below(8),
            CHANNEL[0],
            CHANNEL[1],
            CHANNEL[2],
            CHANNEL[3],
            CHANNEL[4],
            CHANNEL[5],
            CHANNEL[6],
            CHANNEL[0],
            CHANNEL[1],
            CHANNEL[2],
            CHANNEL[3],
            CHANNEL[4],
            CHANNEL[5],
            CHANNEL[6],
            Is(0x4000_0000),
            List(3, CALLBACK_SEC),
        ],
    ),
    (OpCode::DestroySession, &[Session]),
    (OpCode::FreeStateid, &[StateId]),
    (OpCode::SecinfoNoName, &[Below(2)]),
    (OpCode::Sequence, &[Session, Below(4), Below(9), Below(9), Below(2)]),
    (OpCode::TestStateid, &[List(9, &[StateId])]),
    (OpCode::DestroyClientid, &[ClientId]),
    (OpCode::ReclaimComplete, &[Below(2)]),
    (OpCode::Allocate, &[StateId, Offset, Offset]),
    (
        OpCode::Copy,
        &[StateId, StateId, Offset, Offset, Offset, Below(2), Below(2), List(2, NETLOC)],
    ),
    (OpCode::Deallocate, &[StateId, Offset, Offset]),
    (OpCode::IoAdvise, &[StateId, Offset, Offset, Bitmap]),
    (OpCode::OffloadCancel, &[StateId]),
    (OpCode::OffloadStatus, &[StateId]),
    (OpCode::ReadPlus, &[StateId, Offset, Count]),
    (OpCode::Seek, &[StateId, Offset, Below(2)]),
    (OpCode::WriteSame, &[StateId, Below(3), Offset, Offset, Offset, Offset, Count, Offset, Data]),
    (OpCode::Clone, &[StateId, StateId, Offset, Offset, Offset]),
    (OpCode::Getxattr, &[Name]),
    (OpCode::Setxattr, &[Below(3), Name, Data]),
    (OpCode::Listxattrs, &[Cookie, Count]),
    (OpCode::Removexattr, &[Name]),
];

/// The arguments of the procedures of NFSv3.
pub(crate) const V3: &[(Procedure, Fields)] = &[
    (Procedure::Null, &[]),
    (Procedure::Getattr, &[Handle]),
    (Procedure::Setattr, &[Handle, Attrs3, Union(&[(0, &[]), (1, &[Count, Count])])]),
    (Procedure::Lookup, &[Handle, Name]),
    (Procedure::Access, &[Handle, Below(64)]),
    (Procedure::Readlink, &[Handle]),
    (Procedure::Read, &[Handle, Offset, Count]),
    (Procedure::Write, &[Handle, Offset, Count, Below(3), Data]),
    (
        Procedure::Create,
        &[Handle, Name, Union(&[(0, &[Attrs3]), (1, &[Attrs3]), (2, &[Verifier])])],
    ),
    (Procedure::Mkdir, &[Handle, Name, Attrs3]),
    (Procedure::Symlink, &[Handle, Name, Attrs3, Name]),
    (
        Procedure::Mknod,
        &[
            Handle,
            Name,
            Union(&[
                (6, &[Attrs3]),
                (7, &[Attrs3]),
                (3, &[Attrs3, Below(9), Below(9)]),
                (4, &[Attrs3, Below(9), Below(9)]),
                (1, &[]),
                (2, &[]),
                (5, &[]),
            ]),
        ],
    ),
    (Procedure::Remove, &[Handle, Name]),
    (Procedure::Rmdir, &[Handle, Name]),
    (Procedure::Rename, &[Handle, Name, Handle, Name]),
    (Procedure::Link, &[Handle, Handle, Name]),
    (Procedure::Readdir, &[Handle, Cookie, Verifier, Count]),
    (Procedure::Readdirplus, &[Handle, Cookie, Verifier, Count, Count]),
    (Procedure::Fsstat, &[Handle]),
    (Procedure::Fsinfo, &[Handle]),
    (Procedure::Pathconf, &[Handle]),
    (Procedure::Commit, &[Handle, Offset, Count]),
];

/// `nlm4_lock`.
const LOCK: [Field; 6] = [Label, Handle, Label, Below(9), Offset, Offset];
const NLM_LOCK: Fields = &[
    Label,
    Below(2),
    Below(2),
    LOCK[0],
    LOCK[1],
    LOCK[2],
    LOCK[3],
    LOCK[4],
    LOCK[5],
    Below(2),
    Below(9),
];
const NLM_CANCEL: Fields =
    &[Label, Below(2), Below(2), LOCK[0], LOCK[1], LOCK[2], LOCK[3], LOCK[4], LOCK[5]];
const NLM_TEST: Fields = &[Label, Below(2), LOCK[0], LOCK[1], LOCK[2], LOCK[3], LOCK[4], LOCK[5]];
const NLM_UNLOCK: Fields = &[Label, LOCK[0], LOCK[1], LOCK[2], LOCK[3], LOCK[4], LOCK[5]];
const NLM_SHARE: Fields = &[Label, Label, Handle, Label, Below(4), Below(4), Below(2)];
const NLM_RES: Fields = &[Label, Below(10)];
const NLM_TEST_RES: Fields =
    &[Label, Union(&[(0, &[]), (1, &[Below(2), Below(9), Label, Offset, Offset]), (4, &[])])];

/// The arguments of the procedures of the lock manager.
pub(crate) const NLM: &[(nlm::Procedure, Fields)] = &[
    (nlm::Procedure::Lock, NLM_LOCK),
    (nlm::Procedure::Null, &[]),
    (nlm::Procedure::Test, NLM_TEST),
    (nlm::Procedure::Cancel, NLM_CANCEL),
    (nlm::Procedure::Unlock, NLM_UNLOCK),
    (nlm::Procedure::Granted, NLM_TEST),
    (nlm::Procedure::TestMsg, NLM_TEST),
    (nlm::Procedure::LockMsg, NLM_LOCK),
    (nlm::Procedure::CancelMsg, NLM_CANCEL),
    (nlm::Procedure::UnlockMsg, NLM_UNLOCK),
    (nlm::Procedure::GrantedMsg, NLM_TEST),
    (nlm::Procedure::TestRes, NLM_TEST_RES),
    (nlm::Procedure::LockRes, NLM_RES),
    (nlm::Procedure::CancelRes, NLM_RES),
    (nlm::Procedure::UnlockRes, NLM_RES),
    (nlm::Procedure::GrantedRes, NLM_RES),
    (nlm::Procedure::Share, NLM_SHARE),
    (nlm::Procedure::Unshare, NLM_SHARE),
    (nlm::Procedure::NmLock, NLM_LOCK),
    (nlm::Procedure::FreeAll, &[Label, Below(9)]),
];

/// The arguments of the procedures of the status monitor.
pub(crate) const NSM: &[(nsm::Procedure, Fields)] = &[
    (nsm::Procedure::Null, &[]),
    (nsm::Procedure::Stat, &[Label]),
    (nsm::Procedure::Mon, &[Label, Label, Below(9), Below(9), Below(9), Verifier, Verifier]),
    (nsm::Procedure::Unmon, &[Label, Label, Below(9), Below(9), Below(9)]),
    (nsm::Procedure::UnmonAll, &[Label, Below(9), Below(9), Below(9)]),
    (nsm::Procedure::SimuCrash, &[]),
    (nsm::Procedure::Notify, &[Label, Below(9)]),
];

/// The arguments of MOUNT's procedures, by number.
pub(crate) const MOUNT: &[Fields] = &[&[], &[Name], &[], &[Name], &[], &[]];

const ACL: Field = List(5, &[Flags(&[1, 2, 4, 8, 16, 32, 0x1001]), Below(9), Below(9)]);
/// The arguments of NFSACL's procedures, by number. A list's length stands before it once more.
pub(crate) const NFSACL: &[Fields] =
    &[&[], &[Handle, Below(16)], &[Handle, Below(16), Is(0), ACL, Is(0), ACL]];
