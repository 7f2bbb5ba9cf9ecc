//! Error codes (`nfsstat4`: RFC 7530 section 13, RFC 8881 section 15, RFC 7862 section 11,
//! RFC 8276 section 8.4).

use weir_xdr::{Decode, Decoder, Encode, Encoder, Result, xdr_enum};

macro_rules! errors {
    ($($(#[$meta:meta])* $variant:ident = $value:literal, $name:literal;)*) => {
        xdr_enum! {
            /// Why an operation failed. Success is not an error: see [`Outcome`].
            #[non_exhaustive]
            pub enum Error { $($(#[$meta])* $variant = $value,)* }
        }

        impl Error {
            /// Every error, for tests of mappings.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in the RFCs, `NFS4ERR_STALE` for instance.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

errors! {
    /// Only the owner may, or no user at all.
    Perm = 1, "NFS4ERR_PERM";
    /// No such file or directory.
    NoEnt = 2, "NFS4ERR_NOENT";
    /// Hard I/O error.
    Io = 5, "NFS4ERR_IO";
    /// No such range (SEEK), no such device.
    NxIo = 6, "NFS4ERR_NXIO";
    /// Permission denied.
    Access = 13, "NFS4ERR_ACCESS";
    /// File exists.
    Exist = 17, "NFS4ERR_EXIST";
    /// Across file systems.
    XDev = 18, "NFS4ERR_XDEV";
    /// Not a directory.
    NotDir = 20, "NFS4ERR_NOTDIR";
    /// A directory.
    IsDir = 21, "NFS4ERR_ISDIR";
    /// Invalid argument.
    Inval = 22, "NFS4ERR_INVAL";
    /// File too large.
    FBig = 27, "NFS4ERR_FBIG";
    /// No space left.
    NoSpc = 28, "NFS4ERR_NOSPC";
    /// Read-only file system.
    RoFs = 30, "NFS4ERR_ROFS";
    /// Too many links.
    MLink = 31, "NFS4ERR_MLINK";
    /// Name too long.
    NameTooLong = 63, "NFS4ERR_NAMETOOLONG";
    /// Directory not empty.
    NotEmpty = 66, "NFS4ERR_NOTEMPTY";
    /// Quota exceeded.
    DQuot = 69, "NFS4ERR_DQUOT";
    /// The file is gone.
    Stale = 70, "NFS4ERR_STALE";
    /// Not a filehandle of this server.
    BadHandle = 10001, "NFS4ERR_BADHANDLE";
    /// READDIR cookie not valid.
    BadCookie = 10003, "NFS4ERR_BAD_COOKIE";
    /// Operation not supported.
    NotSupp = 10004, "NFS4ERR_NOTSUPP";
    /// Reply or buffer too small.
    TooSmall = 10005, "NFS4ERR_TOOSMALL";
    /// The server failed.
    ServerFault = 10006, "NFS4ERR_SERVERFAULT";
    /// Type not supported.
    BadType = 10007, "NFS4ERR_BADTYPE";
    /// Try again later.
    Delay = 10008, "NFS4ERR_DELAY";
    /// NVERIFY: the attributes are the same.
    Same = 10009, "NFS4ERR_SAME";
    /// A lock is held by another.
    Denied = 10010, "NFS4ERR_DENIED";
    /// The lease expired.
    Expired = 10011, "NFS4ERR_EXPIRED";
    /// I/O conflicts with a lock.
    Locked = 10012, "NFS4ERR_LOCKED";
    /// The server is in its grace period.
    Grace = 10013, "NFS4ERR_GRACE";
    /// The filehandle expired.
    FhExpired = 10014, "NFS4ERR_FHEXPIRED";
    /// A share reservation forbids it.
    ShareDenied = 10015, "NFS4ERR_SHARE_DENIED";
    /// Wrong security flavor.
    WrongSec = 10016, "NFS4ERR_WRONGSEC";
    /// Another client uses the client identity.
    ClIdInUse = 10017, "NFS4ERR_CLID_INUSE";
    /// Resources exhausted (minor version 0).
    Resource = 10018, "NFS4ERR_RESOURCE";
    /// The file system moved.
    Moved = 10019, "NFS4ERR_MOVED";
    /// No current (or saved) filehandle.
    NoFilehandle = 10020, "NFS4ERR_NOFILEHANDLE";
    /// The minor version is not supported.
    MinorVersMismatch = 10021, "NFS4ERR_MINOR_VERS_MISMATCH";
    /// The client id is not known.
    StaleClientId = 10022, "NFS4ERR_STALE_CLIENTID";
    /// The stateid is from an earlier instance of the server.
    StaleStateId = 10023, "NFS4ERR_STALE_STATEID";
    /// The stateid's seqid is behind.
    OldStateId = 10024, "NFS4ERR_OLD_STATEID";
    /// Not a stateid for this.
    BadStateId = 10025, "NFS4ERR_BAD_STATEID";
    /// The owner's seqid is not the next.
    BadSeqId = 10026, "NFS4ERR_BAD_SEQID";
    /// VERIFY: the attributes are not the same.
    NotSame = 10027, "NFS4ERR_NOT_SAME";
    /// The server cannot split or merge these lock ranges.
    LockRange = 10028, "NFS4ERR_LOCK_RANGE";
    /// A symbolic link.
    Symlink = 10029, "NFS4ERR_SYMLINK";
    /// No saved filehandle.
    RestoreFh = 10030, "NFS4ERR_RESTOREFH";
    /// A lease moved with its file system.
    LeaseMoved = 10031, "NFS4ERR_LEASE_MOVED";
    /// An attribute is not supported.
    AttrNotSupp = 10032, "NFS4ERR_ATTRNOTSUPP";
    /// A reclaim outside the grace period.
    NoGrace = 10033, "NFS4ERR_NO_GRACE";
    /// A reclaim of something that was not held.
    ReclaimBad = 10034, "NFS4ERR_RECLAIM_BAD";
    /// A reclaim conflicts with another's.
    ReclaimConflict = 10035, "NFS4ERR_RECLAIM_CONFLICT";
    /// The arguments could not be decoded.
    BadXdr = 10036, "NFS4ERR_BADXDR";
    /// Locks are still held.
    LocksHeld = 10037, "NFS4ERR_LOCKS_HELD";
    /// The file is not open that way.
    OpenMode = 10038, "NFS4ERR_OPENMODE";
    /// An owner name has no meaning here.
    BadOwner = 10039, "NFS4ERR_BADOWNER";
    /// A name has invalid characters.
    BadChar = 10040, "NFS4ERR_BADCHAR";
    /// A name is not allowed.
    BadName = 10041, "NFS4ERR_BADNAME";
    /// The server does not lock such ranges.
    BadRange = 10042, "NFS4ERR_BAD_RANGE";
    /// Atomic lock upgrade is not supported.
    LockNotSupp = 10043, "NFS4ERR_LOCK_NOTSUPP";
    /// No such operation in this minor version.
    OpIllegal = 10044, "NFS4ERR_OP_ILLEGAL";
    /// The lock would deadlock.
    Deadlock = 10045, "NFS4ERR_DEADLOCK";
    /// The file is open.
    FileOpen = 10046, "NFS4ERR_FILE_OPEN";
    /// An administrator revoked the state.
    AdminRevoked = 10047, "NFS4ERR_ADMIN_REVOKED";
    /// The callback path is down.
    CbPathDown = 10048, "NFS4ERR_CB_PATH_DOWN";
    /// Bad I/O mode of a layout.
    BadIoMode = 10049, "NFS4ERR_BADIOMODE";
    /// Bad layout.
    BadLayout = 10050, "NFS4ERR_BADLAYOUT";
    /// Bad SSV digest.
    BadSessionDigest = 10051, "NFS4ERR_BAD_SESSION_DIGEST";
    /// No such session.
    BadSession = 10052, "NFS4ERR_BADSESSION";
    /// No such slot.
    BadSlot = 10053, "NFS4ERR_BADSLOT";
    /// RECLAIM_COMPLETE was done before.
    CompleteAlready = 10054, "NFS4ERR_COMPLETE_ALREADY";
    /// The connection is not bound to the session.
    ConnNotBoundToSession = 10055, "NFS4ERR_CONN_NOT_BOUND_TO_SESSION";
    /// The delegation is already wanted.
    DelegAlreadyWanted = 10056, "NFS4ERR_DELEG_ALREADY_WANTED";
    /// The backchannel is busy.
    BackChanBusy = 10057, "NFS4ERR_BACK_CHAN_BUSY";
    /// Layout: try later.
    LayoutTryLater = 10058, "NFS4ERR_LAYOUTTRYLATER";
    /// No layout to be had.
    LayoutUnavailable = 10059, "NFS4ERR_LAYOUTUNAVAILABLE";
    /// No layout matches.
    NoMatchingLayout = 10060, "NFS4ERR_NOMATCHING_LAYOUT";
    /// A recall conflicts.
    RecallConflict = 10061, "NFS4ERR_RECALLCONFLICT";
    /// Layout type not known.
    UnknownLayoutType = 10062, "NFS4ERR_UNKNOWN_LAYOUTTYPE";
    /// The slot's sequence id is neither the last nor the next.
    SeqMisordered = 10063, "NFS4ERR_SEQ_MISORDERED";
    /// SEQUENCE is not first.
    SequencePos = 10064, "NFS4ERR_SEQUENCE_POS";
    /// The request exceeds the session's limit.
    ReqTooBig = 10065, "NFS4ERR_REQ_TOO_BIG";
    /// The reply would exceed the session's limit.
    RepTooBig = 10066, "NFS4ERR_REP_TOO_BIG";
    /// The reply would exceed the session's limit for cached replies.
    RepTooBigToCache = 10067, "NFS4ERR_REP_TOO_BIG_TO_CACHE";
    /// The reply was not cached.
    RetryUncachedRep = 10068, "NFS4ERR_RETRY_UNCACHED_REP";
    /// The compound cannot be done safely.
    UnsafeCompound = 10069, "NFS4ERR_UNSAFE_COMPOUND";
    /// More operations than the session allows.
    TooManyOps = 10070, "NFS4ERR_TOO_MANY_OPS";
    /// The operation needs a SEQUENCE before it.
    OpNotInSession = 10071, "NFS4ERR_OP_NOT_IN_SESSION";
    /// Hash algorithm not supported.
    HashAlgUnsupp = 10072, "NFS4ERR_HASH_ALG_UNSUPP";
    /// The client still has state.
    ClientIdBusy = 10074, "NFS4ERR_CLIENTID_BUSY";
    /// pNFS I/O to a hole.
    PnfsIoHole = 10075, "NFS4ERR_PNFS_IO_HOLE";
    /// A retry with another request.
    SeqFalseRetry = 10076, "NFS4ERR_SEQ_FALSE_RETRY";
    /// The highest slot id is not valid.
    BadHighSlot = 10077, "NFS4ERR_BAD_HIGH_SLOT";
    /// The session is dead.
    DeadSession = 10078, "NFS4ERR_DEADSESSION";
    /// Encryption algorithm not supported.
    EncrAlgUnsupp = 10079, "NFS4ERR_ENCR_ALG_UNSUPP";
    /// pNFS I/O without a layout.
    PnfsNoLayout = 10080, "NFS4ERR_PNFS_NO_LAYOUT";
    /// The operation must be alone in its compound.
    NotOnlyOp = 10081, "NFS4ERR_NOT_ONLY_OP";
    /// Wrong credential.
    WrongCred = 10082, "NFS4ERR_WRONG_CRED";
    /// The object is not of the right type.
    WrongType = 10083, "NFS4ERR_WRONG_TYPE";
    /// No directory delegation to be had.
    DirDelegUnavail = 10084, "NFS4ERR_DIRDELEG_UNAVAIL";
    /// The client refuses the delegation.
    RejectDeleg = 10085, "NFS4ERR_REJECT_DELEG";
    /// A return conflicts.
    ReturnConflict = 10086, "NFS4ERR_RETURNCONFLICT";
    /// The delegation was revoked.
    DelegRevoked = 10087, "NFS4ERR_DELEG_REVOKED";
    /// COPY: the partner does not support it.
    PartnerNotSupp = 10088, "NFS4ERR_PARTNER_NOTSUPP";
    /// COPY: the partner was not authorised.
    PartnerNoAuth = 10089, "NFS4ERR_PARTNER_NO_AUTH";
    /// An arm of a union is not supported.
    UnionNotSupp = 10090, "NFS4ERR_UNION_NOTSUPP";
    /// The copy was refused.
    OffloadDenied = 10091, "NFS4ERR_OFFLOAD_DENIED";
    /// Label format specifier not supported.
    WrongLfs = 10092, "NFS4ERR_WRONG_LFS";
    /// Bad security label.
    BadLabel = 10093, "NFS4ERR_BADLABEL";
    /// COPY: the requirements cannot be met.
    OffloadNoReqs = 10094, "NFS4ERR_OFFLOAD_NO_REQS";
    /// No such extended attribute.
    NoXattr = 10095, "NFS4ERR_NOXATTR";
    /// The extended attribute is too big.
    Xattr2Big = 10096, "NFS4ERR_XATTR2BIG";
}

impl Error {
    /// Whether a request of minor version 0 that fails so has used up its owner's sequence number (RFC 7530
    /// section 9.1.7).
    pub const fn uses_up_seqid(self) -> bool {
        !matches!(
            self,
            Self::StaleClientId
                | Self::StaleStateId
                | Self::BadStateId
                | Self::BadSeqId
                | Self::BadXdr
                | Self::Resource
                | Self::NoFilehandle
                | Self::Moved
        )
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for Error {}

/// The results of a failed operation: an error, possibly with details.
pub trait Failure: From<Error> {
    /// The error.
    fn error(&self) -> Error;
}

impl Failure for Error {
    fn error(&self) -> Error {
        *self
    }
}

/// A result of an operation.
pub trait Outcome {
    /// Success, or the error.
    fn status(&self) -> std::result::Result<(), Error>;
}

impl<T, F: Failure> Outcome for std::result::Result<T, F> {
    fn status(&self) -> std::result::Result<(), Error> {
        self.as_ref().map(|_| ()).map_err(Failure::error)
    }
}

/// A failure that has details if its error is [`DETAILED`](Detail::ERROR).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detailed<T> {
    /// The one error that brings details.
    Detail(T),
    /// Any other.
    Plain(Error),
}

impl<T: Detail> From<Error> for Detailed<T> {
    fn from(error: Error) -> Self {
        Self::Plain(error)
    }
}

impl<T: Detail> Failure for Detailed<T> {
    fn error(&self) -> Error {
        match self {
            Self::Detail(_) => T::ERROR,
            Self::Plain(error) => *error,
        }
    }
}

/// Details that go with one error.
pub trait Detail {
    /// The error.
    const ERROR: Error;
}

impl<T: Detail> From<T> for Detailed<T> {
    fn from(detail: T) -> Self {
        Self::Detail(detail)
    }
}

impl<T: Encode> Encode for Detailed<T>
where
    T: Detail,
{
    fn encode(&self, e: &mut Encoder) {
        match self {
            Self::Detail(detail) => {
                e.put(&T::ERROR);
                e.put(detail);
            }
            Self::Plain(error) => e.put(error),
        }
    }
}

impl<T: Decode + Detail> Decode for Detailed<T> {
    fn decode(d: &mut Decoder) -> Result<Self> {
        match d.get()? {
            error if error == T::ERROR => d.get().map(Self::Detail),
            error => Ok(Self::Plain(error)),
        }
    }
}
